"""The commands' CUDA branches without a GPU, on `fake_cuda`; and what a GPU machine is given."""

from __future__ import annotations

import contextlib
import gc
import re
import weakref
from itertools import product

import fake_cuda
import pytest
import torch

from benchmarks import cuda_driver, cuda_probes, probes, receipts, timers
from benchmarks.__main__ import main, make_parser
from benchmarks.commands import all as all_command
from benchmarks.commands import contract, counters, ksplit, ptx, stream
from benchmarks.errors import BenchmarkError, GateFailed
from benchmarks.layers import SHAPES, Layer, Ours
from torch_mps_fusion import cuda_kernels

BF16 = torch.bfloat16


@pytest.fixture
def driver(monkeypatch) -> fake_cuda.Driver:
    return fake_cuda.install(monkeypatch)


def run(folder, *words: str) -> list[dict]:
    common = ["--smoke", "--device", "cuda", "--warm-up-gpu-seconds", "0", "--out", str(folder)]
    assert main([*words, *common]) == 0
    return receipts.load_all(folder)


def test_a_layer_is_timed_in_graphs_and_eagerly(driver, tmp_path):
    (found,) = run(tmp_path, "layer", "--rounds", "2")
    assert (found["backend"], found["label"]) == ("cuda", "NVIDIA, not an Apple result")
    replay = {a["name"]: a["replay"] for a in found["arms"]}
    shaders = ("packed", "core", "hybrid", "mega")
    assert {replay[n] for n in ("stock", "linears", *shaders)} == {"CUDA graph"}
    assert {replay[n + " eager"] for n in ("stock", "linears", *shaders)} == {"plain calls"}
    assert "native" not in replay and replay["copy"] == "plain calls"
    pairs = {(c["a"], c["b"]) for c in found["comparisons"]}
    assert ("mega", "packed") in pairs and ("mega eager", "packed eager") in pairs
    assert not any((" eager" in a) != (" eager" in b) for a, b in pairs)


def test_an_arm_that_cannot_be_captured_costs_no_other(driver, tmp_path, monkeypatch):
    seen = []

    def fussy(work):
        seen.append(work)
        if len(seen) == 1:
            raise RuntimeError("operation not permitted when stream is capturing")
        return fake_cuda.capture(work)

    monkeypatch.setattr("benchmarks.commands.layer.capture", fussy)
    (found,) = run(tmp_path, "layer", "--rounds", "2", "--only", "stock", "core")
    names = [a["name"] for a in found["arms"]]
    assert names == ["stock eager", "core", "core eager", "copy", "stock eager (again)"]


def test_pairs_of_several_arms_run_twice(driver, tmp_path, capsys):
    found = run(tmp_path, "paired", "--rounds", "3", "--a", "hybrid", "mega")
    assert [r["results"]["part"] for r in found] == ["small-2-run1", "small-2-run2"]
    assert "hybrid / packed =" in capsys.readouterr().out


def test_a_broken_arm_of_fla_costs_no_other(driver, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.layers.importlib.util.find_spec", lambda name: name)
    (found,) = run(tmp_path, "layer", "--rounds", "2")
    assert "fla" not in {a["name"] for a in found["arms"]}
    assert "no arm fla: ModuleNotFoundError" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["projection", "--rounds", "2"],
        ["serving", "--new", "2", "--seeds", "1"],
        ["numerics"],
        ["contract", "--case", "tasks", "recurrence", "ownership", "lifetime", "progress"],
    ],
)
def test_commands_run(driver, tmp_path, words):
    found = run(tmp_path, *words)
    assert found and all(r["backend"] in ("cuda", "arithmetic") for r in found)


def test_gaps_are_those_of_the_last_replay(driver, tmp_path):
    found = run(tmp_path, "gaps")
    assert {r["results"]["part"] for r in found} == {"packed", "core", "hybrid", "mega"}
    for r in found:
        assert [name for name, _, _ in r["results"]["intervals_s"]] == ["k2", "k1", "k0"]
        assert r["results"]["account_s"]["gaps"] == pytest.approx(4e-6)


def test_replays_of_every_variant(driver, tmp_path):
    found = run(tmp_path, "replay", "--rounds", "2")
    assert {r["results"]["part"] for r in found} == {"packed", "core", "hybrid", "mega"}


def test_a_replay_that_does_nothing_is_refused(driver, monkeypatch, capsys):
    def stale(work):
        fake_cuda.capture(work)
        return fake_cuda.SimpleNamespace(replay=lambda: None)

    monkeypatch.setattr("benchmarks.commands.replay.capture", stale)
    assert main(["replay", "--smoke", "--device", "cuda"]) == 1
    assert "gives other bits than the op" in capsys.readouterr().err


def test_stream_reads_every_word(driver, tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "GRIDS", (1,))
    size = str(1 << 16)
    assert main(["stream", "--device", "cuda", "--bytes", size, "--out", str(tmp_path)]) == 0
    (found,) = receipts.load_all(tmp_path)
    assert {a["selection"] for a in found["arms"]} == {"fixed", "best of sweep"}
    assert {threads for _, _, threads in driver.launches} == set(stream.THREADS)
    monkeypatch.setattr(stream, "words", lambda size, seed: (stream.np.zeros(64, "u4"), 1))
    with pytest.raises(GateFailed, match="checksum"):
        list(stream.run(options("stream", bytes=256)))


def options(command: str, **given):
    found = make_parser().parse_args([command, "--device", "cuda", "--rounds", "2"])
    vars(found).update(given)
    return found


def test_ksplit_has_the_bits_of_the_emulator_and_both_modes(driver, tmp_path):
    x, w = ksplit.operands(4, 512, 0)
    launcher = cuda_probes.CudaLauncher()
    for s in (1, 4):
        assert all(map(torch.equal, ksplit.product(x, w, s, launcher), ksplit.product(x, w, s)))
    words = ["ksplit", "--rounds", "2", "--shape", "gdn_out", "--k-splits", "1", "2"]
    (found,) = run(tmp_path, *words)
    names = [a["name"] for a in found["arms"] if not a["name"].endswith("(again)")]
    assert names == [f"split {s}, {m}" for s in (1, 2) for m in ksplit.MODES]
    assert found["numerics"]["splits"]["1"]["byte_identical"]


def test_a_split_that_writes_nothing_is_no_result(driver, monkeypatch):
    monkeypatch.setattr(cuda_driver, "launch", lambda *arguments: None)
    assert main(["ksplit", "--smoke", "--device", "cuda"]) == 1


def test_hand_offs_run_on_the_device(driver):
    contract.launcher_of.cache_clear()
    try:
        for case in ("norm-dependency", "timeout", "cancellation"):
            assert contract.CASES[case][1]("cuda").kept, case
        assert contract.progress("cuda").kept is None
    finally:
        contract.launcher_of.cache_clear()
    assert {name for name, _, _ in driver.launches} == {"handoff"}


def ncu(folder, arms: list[Ours], monkeypatch, drop: int = 0) -> None:
    """A program of that name which says what ncu would of these arms."""
    kernels = [d.kernel for a in arms for d in a.plan(SHAPES["small"], "cpu", 8, BF16).kernels]
    rows = ['"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"']
    for i, (kernel, metric) in enumerate(product(kernels[drop:], counters.METRICS.values())):
        number = i // len(counters.METRICS)
        rows.append(f'"{number}","{kernel}(msl::Arguments)","{metric}","","1,{i:03}.5"')
    script = folder / "ncu"
    script.write_text("#!/bin/sh\necho '==PROF== Connected'\ncat <<'END'\n" + "\n".join(rows))
    script.write_text(script.read_text() + "\nEND\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_counters_are_those_of_ncu(driver, tmp_path, monkeypatch):
    arms = [Ours(v) for v in ("packed", "core", "hybrid", "mega")]
    ncu(tmp_path, arms, monkeypatch)
    (found,) = run(tmp_path / "out", "counters")
    counts = {a["name"]: a["counts"]["dispatches"] for a in found["arms"]}
    assert [d["family"] for d in counts["core"]] == ["projection", "core", "projection"]
    assert counts["packed"][0]["occupancy"] == 1000.5 and all(counts.values())
    assert all(a["instrumented"] for a in found["arms"])
    ncu(tmp_path, arms, monkeypatch, drop=1)
    assert main(["counters", "--device", "cuda"]) == 1


def test_the_driver_says_what_is_wrong(driver):
    with pytest.raises(BenchmarkError, match="line 3: no.*CUDA_ERROR_OF_THE_FAKE"):
        cuda_driver.load("broken", "broken||", [])
    found = cuda_driver.load("ksplit", "ksplit|0=1|4", [4])
    assert found.attributes["registers"] == 32
    assert cuda_driver.resident_groups(found, 256) == 8


def test_arguments_have_the_layout_of_a_kernel():
    assert cuda_driver.Arguments.threadgroups.offset == 8 * 31
    assert cuda_driver.Arguments.values.offset == 384


def every_probe() -> list[probes.Probe]:
    return list(ptx.of_probes())


@pytest.mark.parametrize("probe", every_probe(), ids=lambda p: f"{p.name} {p.constants}")
def test_ptx_of_probes(probe):
    (family, name, constants), text = cuda_probes.kernel(probe)
    made, slots = cuda_kernels.find(family, name, constants, text)
    assert re.search(rf"\.entry {name}\(", made)
    assert f".maxntid {probe.threads}, 1, 1" in made
    values = len(slots.split())
    assert [int(s) for s in slots.split()] == sorted(probe.values)
    size = 384 + 128 * values if values else 376
    assert re.search(rf"\.param \.align \d+ \.b8 {name}_param_0\[{size}\]", made)


def test_one_command_lists_all_kernels_of_a_gpu_machine(capsys, tmp_path):
    assert main(["ptx", str(tmp_path), "--list"]) == 0
    listed = capsys.readouterr().out
    for word in ("stream-", "ksplit-", "handoff-", "tmf_core_", "tmf_persistent_", "nt1u4__group-"):
        assert word in listed
    for probe in every_probe():
        assert cuda_kernels.file_name(*cuda_probes.kernel(probe)) in listed


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("name", ["layer", "stream", "all"])
@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_without_a_gpu_there_is_one_clear_error(name, device, capsys):
    assert main([name, "--device", device]) == 1
    assert f"--device {device}: PyTorch sees no such device here" in capsys.readouterr().err


def test_a_command_that_fails_or_hangs_costs_no_other(monkeypatch, capsys):
    slow = ["memory", "--device", "cpu"]
    assert all_command.execute(slow, 0.5) == "given up after 0 s"
    reason = all_command.execute(["price", "--rate-gb-s", "nonsense"], 60)
    assert reason.startswith("python -m benchmarks")


def test_quick_names_arguments_that_the_commands_take():
    found = all_command.plan(options("all", quick=True))
    parser = make_parser()
    for name, (words, limit) in found.items():
        assert parser.parse_args([name, *words]).command == name and limit < 200
    assert "memory" not in found


def test_a_copy_of_a_layer_has_its_contents_elsewhere():
    layer = Layer(SHAPES["small"], "cpu", 0)
    other = layer.copy()
    assert torch.equal(other.packed[0], layer.packed[0])
    assert other.packed[0].data_ptr() != layer.packed[0].data_ptr()
    assert other.state.stride() == layer.state.stride() and other.shape is layer.shape


def test_a_captured_graph_keeps_what_it_writes(driver, monkeypatch):
    """And is captured on the stream on which the work ran before."""
    streams = []

    class Graph:
        def replay(self) -> None:
            streams.append("replay")

    @contextlib.contextmanager
    def graph(made, stream):
        streams.append(stream)
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "stream", lambda s: streams.append(s) or fake_cuda.stream(s))
    written = torch.zeros(3)
    seen = weakref.ref(written)
    replay = timers.capture(written.zero_).replay
    del written
    gc.collect()
    replay()
    assert seen() is not None
    assert streams[0] is streams[1] and streams[2] == "replay"
