"""The Mac's clock without a Mac: `metal_queue` on a fake of Metal that runs the kernels."""

from __future__ import annotations

import fake_metal
import pytest
import torch
from bench_receipts import options

from benchmarks import metal_queue, probes, receipts
from benchmarks.commands import contract, gaps, ksplit, stream
from benchmarks.commands.layer import memory
from benchmarks.errors import BenchmarkError, DeadlineExceeded, TimerMissing
from benchmarks.layers import SHAPES, Layer, Ours
from benchmarks.metal_queue import MetalQueue, memory_bytes

ROWS = 2


@pytest.fixture
def queue(monkeypatch) -> MetalQueue:
    fake = fake_metal.Metal()
    monkeypatch.setattr(metal_queue, "metal", lambda: fake)
    monkeypatch.setattr(metal_queue, "set_constant", fake_metal.set_constant)
    # the fake takes every setter, as macOS 15 has them
    monkeypatch.setattr(
        fake_metal.Plain,
        "setMathMode_",
        lambda self, v: self.values.update(setMathMode_=v),
        raising=False,
    )
    return MetalQueue(deadline=0.2)


@pytest.fixture(scope="module")
def layer() -> Layer:
    return Layer(SHAPES["small"], "cpu", 0)


def encoded(queue: MetalQueue, layer: Layer, variant: str, indirect: bool = False):
    arm = Ours(variant)
    program = arm.plan(layer.shape, "cpu", ROWS, torch.bfloat16)
    return queue.encoded(program, memory(arm, layer, layer.hidden(ROWS)), indirect)


@pytest.mark.parametrize("variant", ["packed", "core", "hybrid", "mega"])
def test_a_program_on_our_queue_gives_the_bits_of_the_op(queue, layer, variant):
    work = encoded(queue, layer, variant)
    count = len(work.program.dispatches)
    assert queue.seconds(work, 1) == pytest.approx(count * 1e-6)
    states = layer.states()
    output, conv, state = Ours(variant)(layer, layer.hidden(ROWS), states)
    assert work.read("output") == memory_bytes(output)
    assert work.read("state_out") == memory_bytes(state)
    assert work.read("conv_out") == memory_bytes(conv)
    queue.seconds(work, 1)  # in place: the state goes on
    output = Ours(variant)(layer, layer.hidden(ROWS), states)[0]
    assert work.read("output") == memory_bytes(output)


def test_an_indirect_command_buffer_gives_the_same_bits(queue, layer):
    plain, recorded = encoded(queue, layer, "core"), encoded(queue, layer, "core", True)
    queue.seconds(plain, 1)
    commands = queue.indirect(recorded)
    queue.interval(commands.encode)
    assert commands.read("output") == plain.read("output")


def test_intervals_of_dispatches_balance(queue, layer):
    work = encoded(queue, layer, "packed")
    found = queue.intervals(work)
    assert [name for name, _, _ in found] == [d.stage for d in work.program.dispatches]
    assert gaps.account(found).balances(1e-9)


def test_a_probe_on_our_queue(queue):
    launcher = probes.MetalLauncher()
    x, w = ksplit.operands(4, 512, 0)
    for got, want in zip(ksplit.product(x, w, 2, launcher), ksplit.product(x, w, 2), strict=True):
        assert torch.equal(got, want)


def test_a_streaming_sweep_on_our_queue(queue, monkeypatch):
    """All of `stream --device mps` but the chip's facts."""
    monkeypatch.setattr(receipts, "new", lambda options, backend, **found: (backend, found))
    cells = [(pattern, 1, 256) for pattern in stream.PATTERNS]
    given = options("stream", bytes=1 << 14, repeats=9, seed=0, order="abba", deadline=60.0)
    vars(given).update(device="mps", warm_up_gpu_seconds=0.0)
    backend, found = stream.measured(given, cells)
    assert backend == "mps" and found["measured"].timer == MetalQueue.name
    assert [a["selection"] for a in found["arms"]] == ["best of sweep"] * 3 + ["fixed"]


def test_a_device_that_hangs_breaks_a_case_and_a_missing_probe_defers_it(queue, monkeypatch):
    monkeypatch.setattr(contract, "launcher_of", lambda device: probes.MetalLauncher(0.1))
    assert contract.judged(contract.cancellation, "mps").kept
    queue.device.outcome = 3
    assert contract.judged(contract.cancellation, "mps").kept is False
    monkeypatch.setattr(probes, "text", lambda name: "#include <metal_stdlib>\n")
    assert contract.judged(contract.cancellation, "mps").kept is None


def test_a_device_that_hangs_is_a_typed_error(queue, layer):
    work = encoded(queue, layer, "core")
    queue.device.outcome = 3
    with pytest.raises(DeadlineExceeded, match="0.2 s"):
        queue.seconds(work, 1)


def test_a_failed_command_buffer_says_why(queue, layer):
    work = encoded(queue, layer, "core")
    queue.device.outcome = fake_metal.FAILED
    with pytest.raises(BenchmarkError, match="the fake says no"):
        queue.seconds(work, 1)


def test_a_kernel_that_is_not_there_says_so(queue):
    with pytest.raises(BenchmarkError, match="nothing"):
        queue.pipeline("rule", "nothing", {}, "#include <metal_stdlib>\n")


def test_products_of_aten_are_refused(queue, layer):
    program = Ours("packed").plan(layer.shape, "cpu", 200, torch.bfloat16)
    assert any(d.product for d in program.dispatches)
    with pytest.raises(BenchmarkError, match="products"):
        queue.encoded(program, {})


def test_without_pyobjc_the_error_names_it():
    with pytest.raises(TimerMissing, match="pyobjc-framework-Metal"):
        MetalQueue()


def test_the_language_follows_the_text():
    assert metal_queue.language("kernel void k() {}") == 0x30001
    assert metal_queue.language("coherent(device) device uint* p") == 0x30002
