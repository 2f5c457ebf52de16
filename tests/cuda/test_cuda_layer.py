"""`packed` and `core` on CUDA tensors: what is asked of that device alone."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch
from cases import REAL, SMALL
from compare import (
    NAMES,
    assert_close,
    assert_equal,
    reference_layer,
    run_layer,
    run_layer_in_place,
)
from needed import BF16, COMPARED, F16, F32, VARIANTS, cuda, inputs, moved

from torch_mps_fusion.tolerances import error, tolerance

pytestmark = pytest.mark.gpu
CALLS = {
    "27b bfloat16 1": (REAL["27b"], BF16, 1),
    "27b bfloat16 8": (REAL["27b"], BF16, 8),
    "27b float16 8": (REAL["27b"], F16, 8),
    "0.8b float32 8": (REAL["0.8b"], F32, 8),
    "0.8b float32 40": (REAL["0.8b"], F32, 40),
}


@contextlib.contextmanager
def geometry(text: str):
    before = torch.ops.mps_fusion._override_geometry(text)
    try:
        yield
    finally:
        torch.ops.mps_fusion._override_geometry(before)


def captured(work):
    """Replays the work, which returns tensors, from a graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        tensors = work()

    def replay():
        graph.replay()
        return tensors

    return replay


def cpu(tensors: tuple) -> tuple:
    return tuple(t.cpu() for t in tensors)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_real_shapes_agree_with_float64_and_with_each_other(call) -> None:
    layer, hidden, states = inputs(*call)
    there = moved(layer)
    packed, core = (cpu(run_layer(there, hidden.cuda(), cuda(states), variant=v)) for v in VARIANTS)
    assert_equal(packed, core)
    assert_close(core, reference_layer(layer, hidden, states), hidden.dtype)


@pytest.mark.parametrize("name", COMPARED)
def test_agrees_with_metal_host(name, from_metal_host) -> None:
    """Within twice the table: both may differ from float64 by it."""
    layer, hidden, states = inputs(*COMPARED[name])
    got = cpu(run_layer(moved(layer), hidden.cuda(), cuda(states), variant="core"))
    for what, g, w in zip(NAMES, got, from_metal_host[name], strict=True):
        assert error(g, w) <= 2 * tolerance(what, hidden.dtype).rms, what


@pytest.mark.parametrize("variant", VARIANTS)
def test_G5_fifty_repeats_are_bit_identical(variant) -> None:
    layer, hidden, states = inputs(REAL["27b"], BF16, 8)
    there, x, given = moved(layer), hidden.cuda(), cuda(states)
    first = run_layer(there, x, given, variant=variant)
    for _ in range(50):
        assert_equal(run_layer(there, x, given, variant=variant), first)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("rows", [1, 8])
def test_dispatches_that_overlap_give_the_bits_of_those_that_do_not(variant, rows) -> None:
    """A chain of layers on one state, replayed: each starts while the one before still runs."""
    layer, hidden, states = inputs(REAL["27b"], BF16, rows)
    there, x = moved(layer), hidden.cuda()
    results = []
    for overlap in (0, 1):
        with geometry(f";overlap={overlap}"):
            own = cuda(states)
            replay = captured(
                lambda own=own: [run_layer_in_place(there, x, own, variant=variant) for _ in "abcd"]
            )
            outputs = [tuple(t.clone() for t in replay()) for _ in range(50)]
        results.append([*(t for step in outputs for t in step), *own])
    assert len(results[0]) == 50 * 4 + 2
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    """Eight tokens in one call are eight calls of one token, bit for bit."""
    layer, hidden, states = inputs(REAL["27b"], BF16, 8)
    there, x = moved(layer), hidden.cuda()
    whole = run_layer(there, x, cuda(states), variant="core")
    own = cuda(states)
    parts = [run_layer_in_place(there, x[:, t : t + 1], own, variant="core") for t in range(8)]
    assert_equal((torch.cat(parts, 1), *own), whole)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("tokens", [1, 9, 40])
def test_a_captured_call_advances_the_state_at_every_replay(variant, tokens) -> None:
    layer, hidden, states = inputs(SMALL, BF16, tokens)
    there, x = moved(layer), hidden.cuda()
    own, wanted = cuda(states), cuda(states)
    run_layer_in_place(there, x, cuda(states), variant=variant)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = run_layer_in_place(there, x, own, variant=variant)
    for i in range(5):
        x.copy_(torch.roll(hidden, i, -1))
        graph.replay()
        expected = run_layer_in_place(there, x, wanted, variant=variant)
        assert_equal((output, *own), (expected, *wanted))


def test_the_first_call_of_a_kernel_may_be_captured() -> None:
    """Its module is loaded while the stream records; no other test has this kernel."""
    layer, hidden, states = inputs(SMALL, BF16, 3)
    layer.A_log, layer.dt_bias = layer.A_log.float(), layer.dt_bias.float()
    there, x, own = moved(layer), hidden.cuda(), cuda(states)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = run_layer_in_place(there, x, own, variant="core")
    graph.replay()
    assert_close(cpu((output, *own)), reference_layer(layer, hidden, states), hidden.dtype)


def test_runs_on_the_current_stream() -> None:
    """On a side stream that is kept busy, the call waits for what was asked before it there."""
    layer, hidden, states = inputs(SMALL, BF16, 9)
    there, given = moved(layer), cuda(states)
    expected = run_layer(there, hidden.cuda(), given, variant="core")
    x, source = torch.zeros_like(hidden, device="cuda"), hidden.cuda()
    busy = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(20):
            busy = busy @ busy
        x.copy_(source)
        got = run_layer(there, x, given, variant="core")
        assert not side.query(), "the call waited for the device"
    side.synchronize()
    assert_equal(got, expected)


def test_a_thread_that_has_used_no_cuda_yet() -> None:
    layer, hidden, states = inputs(SMALL, BF16, 9)
    there, x, given = moved(layer), hidden.cuda(), cuda(states)
    expected = run_layer(there, x, given, variant="packed")
    torch.cuda.synchronize()
    results: list[tuple] = []
    thread = threading.Thread(
        target=lambda: results.append(run_layer(there, x, given, variant="packed"))
    )
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert_equal(results[0], expected)


def test_the_other_lane_map_is_refused() -> None:
    layer, hidden, states = inputs(SMALL, BF16, 9)
    there = moved(layer)
    there.keywords["weight_format"] = "tiles16-apple"
    with pytest.raises(NotImplementedError, match="accepted: 'tiles16-nvidia'"):
        run_layer(there, hidden.cuda(), cuda(states), variant="core")


def test_more_sequences_than_a_grid_holds() -> None:
    """70,000 equal sequences, above CUDA's 65,535 threadgroups in y and z: equal results."""
    layer, hidden, _ = inputs(SMALL, BF16, 1)
    results = run_layer(
        moved(layer), hidden.cuda().expand(70_000, -1, -1).contiguous(), variant="core"
    )
    for t in results:
        assert torch.equal(t, t[:1].expand_as(t))
