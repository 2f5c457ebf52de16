"""What csrc/mps promises, on the fake device: order, offsets, errors, threads, memory."""

from __future__ import annotations

import threading

import cross
import fake_device
import pytest
import small
import torch
import written_programs
from program import Program
from settings import SETTINGS, make_case

from torch_mps_fusion import shaders


@pytest.fixture
def fresh(mps):
    """The extension loaded anew, with empty caches."""
    fake_device.load_extension()
    return mps


def made(device, work) -> dict[str, int]:
    """What `work` adds to the device's counters."""
    before = device.counters()
    work()
    return {name: n - before[name] for name, n in device.counters().items()}


def test_A5_storage_offsets_reach_the_encoder(mps) -> None:
    x, weight, y, z = small.tensors(offset=64)
    small.encode(small.twice(), [x, weight, y, z])
    once = small.norm(x.cpu(), weight.cpu())
    torch.testing.assert_close(y.cpu(), once)
    torch.testing.assert_close(z.cpu(), small.norm(once, weight.cpu()))
    for t in (y, z):
        guard = t.as_strided((64,), (1,), 0).cpu()
        assert torch.equal(
            guard, small.tensors(4, 64)[2 + (t is z)].as_strided((64,), (1,), 0).cpu()
        )


def test_I1_I2_between_operators_of_torch_and_twice(mps) -> None:
    x, weight, y, z = small.tensors()
    source, target = small.tensors(2)
    source.copy_(torch.linspace(1, 2, small.K))
    for _ in range(2):
        x.copy_(source)  # a dispatch of torch's own on the same encoder
        small.encode(small.twice(), [x, weight, y, z])
        target.copy_(z)
    expected = small.norm(small.norm(source.cpu(), weight.cpu()), weight.cpu())
    torch.testing.assert_close(target.cpu(), expected)


def test_I3_threads_that_arrive_together_make_one_pipeline(fresh) -> None:
    fresh.compile_time(200)
    start = threading.Barrier(4)

    def work() -> None:
        buffers = small.tensors()
        start.wait()
        small.encode(small.norm_lines(), buffers)

    threads = [threading.Thread(target=work) for _ in range(4)]

    def all_threads() -> None:
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    counts = made(fresh, all_threads)
    fresh.compile_time(0)
    assert counts["libraries"] == counts["pipelines"] == 1
    assert counts["dispatches"] == 4


@pytest.mark.parametrize(("variant", "libraries", "pipelines"), [("packed", 5, 6), ("core", 2, 3)])
def test_only_what_a_call_needs_is_compiled(fresh, variant, libraries, pipelines) -> None:
    case = make_case(SETTINGS[0], torch.bfloat16, 1, 1)
    program = Program(variant, case.layer, case.hidden, case.states, case.mask)
    written = written_programs.write(program)
    first = made(fresh, written.encode)
    assert (first["libraries"], first["pipelines"]) == (libraries, pipelines)
    for dispatch in program.dispatches:
        macros = [f"#define {k} {v}\n" for k, v in shaders.defines(dispatch.kernel).items()]
        assert any(text.startswith("".join(macros)) for text in fresh.texts), dispatch.kernel
    again = made(fresh, written.encode)
    assert again["libraries"] == again["pipelines"] == 0
    fresh.synchronize()


def broken(family: str) -> str:
    """The generated shader texts with an error in one family."""
    text = cross.generated().read_text()
    mark = f'{{"{family}", R"TMF_MSL('
    assert mark in text
    return text.replace(mark, mark + "kernel void broken() { no_such_function(1); }\n")


def test_L4_a_family_that_does_not_compile_leaves_the_others(mps) -> None:
    fake_device.load_extension(shaders=broken("conv"))
    prepare = torch.ops.mps_fusion._prepare_kernel
    message = prepare("mps", "conv", "tmf_conv_f32_f32_n256__thread")
    assert "shader family 'conv' does not compile" in message and "no_such_function" in message
    lines = [
        "kernel conv tmf_conv_f32_f32_n256__thread",
        "dispatch 1 1 1 256",
    ]
    with pytest.raises(RuntimeError, match="no_such_function"):
        small.encode(lines, [])
    x, weight, y, z = small.tensors()
    small.encode(small.norm_lines(), [x, weight, y, z])
    torch.testing.assert_close(y.cpu(), small.norm(x.cpu(), weight.cpu()))
    assert prepare("mps", "rms_norm", small.NORM) == ""


def test_a_pipeline_that_fails_is_an_error_and_later_calls_work(fresh) -> None:
    x, weight, y, z = small.tensors()
    fresh.fail_pipelines(1)
    with pytest.raises(RuntimeError, match="no pipeline for rms_norm/.*the device says no"):
        small.encode(small.norm_lines(), [x, weight, y, z])
    assert fresh.live("NSError") == 0
    small.encode(small.norm_lines(), [x, weight, y, z])
    torch.testing.assert_close(y.cpu(), small.norm(x.cpu(), weight.cpu()))


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (small.norm_lines(threads=512), "threads: got 512; accepted: 1 to 256"),
        (small.norm_lines(threads=0), "threads: got 0; accepted: 1 to 256"),
        ([*small.norm_lines()[:-1], "dispatch 0 1 1 256"], "grid: got an empty one"),
        (
            [*small.norm_lines()[:-2], small.norm_line(bytes(5000)), "dispatch 1 1 1 256"],
            "argument 3: got 5000 inline bytes; accepted: 1 to 4096",
        ),
        (["kernel rms_norm tmf_nothing_f32_f32_n256__group", "dispatch 1 1 1 1"], "has no kernel"),
        (["kernel nowhere tmf_x_f32_f32_n1__group", "dispatch 1 1 1 1"], "family: got 'nowhere'"),
        (["kernel rms_norm norm", "dispatch 1 1 1 1"], "'norm' is not a kernel name"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_encoded(mps, second, message) -> None:
    def work() -> None:
        with pytest.raises((RuntimeError, ValueError), match=message):
            small.encode([*small.norm_lines(), "barrier", *second], small.tensors())

    assert made(mps, work)["dispatches"] == 0


def test_every_family_prepares(mps) -> None:
    from torch_mps_fusion.doctor import KERNELS

    assert set(KERNELS) == set(shaders.FAMILIES)
    for family, kernel in KERNELS.items():
        assert torch.ops.mps_fusion._prepare_kernel("mps", family, kernel) == "", family


def test_J1_memory_is_flat_over_ten_thousand_calls(mps) -> None:
    buffers = small.tensors()
    small.encode(small.norm_lines(), buffers)
    mps.synchronize()
    before, text = mps.live(), "\n".join(small.norm_lines())
    for i in range(10_000):
        torch.ops.fake_mps.encode(text, buffers)
        if i % 1000 == 0:
            mps.synchronize()
    mps.synchronize()
    assert mps.live() == before
