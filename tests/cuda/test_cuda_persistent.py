"""`hybrid` and `mega` on CUDA tensors: real concurrency, real weak memory."""

from __future__ import annotations

import pytest
import torch
from cases import REAL, SMALL, pack_layer
from compare import assert_equal, run_layer, run_layer_in_place
from needed import BF16, PERSISTENT, cuda, in_slots, inputs, moved, slots_of
from test_cuda_layer import geometry

from torch_mps_fusion import instrumented, ops, plan
from torch_mps_fusion.cuda_kernels import DEVICE

pytestmark = pytest.mark.gpu
# Fewer than multiprocessors, all of them at once, more than fit.
WORKERS = (40, 264, 1000)


@pytest.fixture(autouse=True)
def launches_end_well():
    yield
    ops.check_launches("cuda")


def poisoned() -> None:
    """Memory that the next call gets holds nothing that an earlier one wrote there."""
    torch.cuda.empty_cache()
    torch.full((1 << 26,), float("nan"), device="cuda")


@pytest.mark.parametrize("variant", PERSISTENT)
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("call", [(SMALL, BF16, 9), (REAL["27b"], BF16, 1), (REAL["27b"], BF16, 8)])
def test_has_the_bits_of_packed(variant, workers, call) -> None:
    layer, hidden, states = inputs(*call)
    there, x, given = moved(layer), hidden.cuda(), cuda(states)
    wanted = [run_layer(there, x, given, variant="packed")]
    for _ in range(3):
        wanted.append(run_layer(there, x, wanted[-1][1:], variant="packed"))
    with geometry(f";workers={workers}"):
        own = given
        for want in wanted:
            poisoned()
            got = run_layer(there, x, own, variant=variant)
            assert_equal(got, want)
            own = got[1:]


@pytest.mark.parametrize("variant", PERSISTENT)
def test_ten_thousand_launches_in_place(variant) -> None:
    layer, hidden, states = inputs(SMALL, BF16, 1)
    there, x = moved(layer), hidden.cuda()
    own, wanted = cuda(states), cuda(states)
    for i in range(10_000):
        output = run_layer_in_place(there, x, own, variant=variant)
        expected = run_layer_in_place(there, x, wanted, variant="core")
        if i % 500 == 0 or i == 9_999:
            assert_equal((output, *own), (expected, *wanted))


@pytest.mark.parametrize("variant", PERSISTENT)
def test_replays_of_a_graph(variant) -> None:
    """Counters are never reset: each replay is a launch more."""
    layer, hidden, states = inputs(REAL["27b"], BF16, 8)
    there, x = moved(layer), hidden.cuda()
    own, wanted = cuda(states), cuda(states)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # the blocks of a stream are made outside a capture
        run_layer_in_place(there, x, cuda(states), variant=variant)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        output = run_layer_in_place(there, x, own, variant=variant)
    for _ in range(200):
        graph.replay()
        expected = run_layer_in_place(there, x, wanted, variant="core")
    assert_equal((output, *own), (expected, *wanted))


@pytest.mark.parametrize("variant", PERSISTENT)
def test_two_streams_at_once(variant) -> None:
    layer, hidden, states = inputs(SMALL, BF16, 9)
    there, x = moved(layer), hidden.cuda()
    wanted = cuda(states)
    for _ in range(100):
        expected = run_layer_in_place(there, x, wanted, variant="core")
    torch.cuda.synchronize()
    found = []
    for stream in (torch.cuda.Stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            own = cuda(states)
            for _ in range(100):
                output = run_layer_in_place(there, x, own, variant=variant)
            found.append((output, *own))
    torch.cuda.synchronize()
    for results in found:
        assert_equal(results, (expected, *wanted))


@pytest.mark.parametrize("variant", PERSISTENT)
def test_a_cancelled_launch_leaves_the_states_and_the_next_call_works(variant) -> None:
    layer, hidden, states = inputs(SMALL, BF16, 9)
    there, x, own = moved(layer), hidden.cuda(), cuda(states)
    expected = run_layer(there, x, own, variant="core")
    run_layer_in_place(there, x, cuda(states), variant=variant)  # makes the blocks of such calls
    controls = [t for t in torch.ops.mps_fusion._task_blocks("cuda") if t.numel() == CONTROL_WORDS]
    for control in controls:
        control[CANCEL] = 1
    run_layer_in_place(there, x, own, variant=variant)
    for now, before in zip(own, states, strict=True):
        assert torch.equal(now.cpu(), before)
    with pytest.raises(RuntimeError, match="cancelled"):
        ops.check_launches("cuda")
    for control in controls:  # of other tests' programs, which would be cancelled one day
        control[CANCEL] = 0
    got = run_layer_in_place(there, x, own, variant=variant)
    assert_equal((got, *own), expected)


@pytest.mark.parametrize("variant", PERSISTENT)
def test_states_in_slots_take_turns_on_one_stream(variant) -> None:
    layer, hidden, states = inputs(SMALL, BF16, 1)
    there, x, wanted = moved(layer), hidden.cuda(), cuda(states)
    slots = slots_of(wanted)
    control = torch.zeros(CONTROL_WORDS, dtype=torch.int32, device="cuda")
    for i in range(1, 101):
        output = in_slots(there, x, slots, control, variant)
        expected = run_layer_in_place(there, x, wanted, variant="core")
        if i in (1, 2, 99, 100):
            committed = [s[int(control[SLOT])] for s in slots]
            assert int(control[SLOT]) == i % 2
            assert_equal((output, *committed), (expected, *wanted))
    with (
        torch.cuda.stream(torch.cuda.Stream()),
        pytest.raises(
            ValueError, match="control: got a block whose launches are on another stream"
        ),
    ):
        in_slots(there, x, slots, control, variant)
    ops.check_launches("cuda")


@pytest.mark.parametrize("variant", PERSISTENT)
def test_the_instrumented_build(variant) -> None:
    """The bits of the plain one; every task ends after it began, on the GPU's own clock."""
    layer, hidden, states = inputs(SMALL, BF16, 9)
    there, x, given = moved(layer), hidden.cuda(), cuda(states)
    wanted = run_layer(there, x, given, variant=variant)
    with geometry(";times=1"):
        assert_equal(run_layer(there, x, given, variant=variant), wanted)
    torch.cuda.synchronize()
    packed = pack_layer(layer, "nvidia")
    arguments = (hidden, *packed.weights, packed.input_norm_weight, *states, None)
    keywords = {**packed.keywords, "variant": variant, "device": DEVICE}
    program = plan.plan_layer(*arguments, **keywords, geometry=";times=1")
    tasks = next(d.tasks for d in program.dispatches if d.tasks)
    spans = instrumented.read(tasks, "cuda").spans
    assert len(spans) == len(tasks.records)
    assert all(s.drawn <= s.ready <= s.end for s in spans)
    assert {s.worker for s in spans} <= set(range(tasks.workers))


CONTROL_WORDS, SLOT, CANCEL = 16, 5, 6  # shaders/include/tasks.h
