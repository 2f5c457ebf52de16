"""Schedules: what they do, that they repeat, and that none of them hangs."""

import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from metal_text import HEAD, TWO_STAGES

from torch_mps_fusion.metal_host import SCHEDULES, FaultError, Library

TILES, THREADS = 5, 32


@pytest.fixture(scope="module", params=(False, True), ids=("plain", "checked"))
def two_stages(request):
    return Library("two_stages.metal", text=TWO_STAGES, checked=request.param).kernel("two_stages")


def run(kernel, workers=4, limit=0, **options):
    x = np.arange(TILES * THREADS, dtype=np.float32)
    sums, status = np.zeros(TILES, np.float32), np.zeros(3, np.uint32)
    args = [x, np.zeros_like(x), sums, status, TILES, limit]
    result = kernel(workers, THREADS, args, **options)
    return result, sums, status, (x * x).sum()


@pytest.mark.parametrize("schedule", [s for s in SCHEDULES if s != "unfair"])
def test_every_fair_schedule_gives_the_result(two_stages, schedule):
    orders, residencies = ("forward", "reversed", "shuffled"), (0, 1, 2)
    for seed, (order, residency) in enumerate(itertools.product(orders, residencies)):
        _, sums, _, want = run(
            two_stages, schedule=schedule, seed=seed, order=order, residency=residency
        )
        assert (sums == want).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_same_seed_same_run(two_stages, schedule):
    def once(seed):
        result, sums, status, _ = run(
            two_stages, limit=50, schedule=schedule, seed=seed, order="shuffled"
        )
        return result.trace, result.counters, sums.tolist(), status.tolist()

    runs = {seed: once(seed) for seed in range(6)}
    for seed, first in runs.items():
        assert once(seed) == first
    if schedule != "fifo":
        assert len({r[0] for r in runs.values()}) > 1


def test_preemption_changes_the_schedule_and_not_the_result():
    kernel = Library("two_stages.metal", text=TWO_STAGES, checked=True).kernel("two_stages")
    traces = set()
    for seed in range(4):
        result, sums, _, want = run(kernel, preempt=7, seed=seed)
        assert (sums == want).all()
        traces.add(result.trace)
    assert len(traces) == 4


def test_unfair_starves_a_waiter_without_bound(two_stages):
    seen = 0
    for seed in range(24):
        try:
            run(two_stages, schedule="unfair", seed=seed)
        except FaultError as error:
            fault = error.faults[0]
            assert fault.kind == "livelock"
            assert "starved" in fault.message and "`status` + 0" in fault.message
            assert fault.location.file == "two_stages.metal"
            seen += 1
    assert seen > 0


def test_unfair_makes_a_bounded_wait_give_up(two_stages):
    gave_up = 0
    for seed in range(24):
        _, sums, status, want = run(two_stages, limit=500, schedule="unfair", seed=seed)
        gave_up += int(status[2])
        if not status[2]:
            assert (sums == want).all()
    assert gave_up > 0


def test_lost_workers_end_in_the_shaders_own_error(two_stages):
    outcomes = set()
    for seed in range(16):
        result, sums, status, want = run(
            two_stages, limit=500, lost=1, schedule="random", seed=seed
        )
        assert result.finished + result.lost == 4
        outcomes.add((result.lost, int(status[2])))
        if not status[2] and not result.lost:
            assert (sums == want).all()
    assert (1, 1) in outcomes


def test_lost_workers_without_a_bound_are_a_livelock(two_stages):
    kinds = set()
    for seed in range(16):
        try:
            run(two_stages, lost=1, schedule="random", seed=seed)
        except FaultError as error:
            kinds.add(error.faults[0].kind)
            assert "(1 lost)" in error.faults[0].message
            assert "(lost)" in error.faults[0].message
    assert kinds == {"livelock"}


def test_lost_worker_that_holds_the_only_place_is_a_deadlock(two_stages):
    for seed in range(16):
        try:
            run(two_stages, limit=500, lost=1, residency=1, seed=seed)
        except FaultError as error:
            assert error.faults[0].kind == "deadlock"
            assert "not started" in error.faults[0].message
            return
    pytest.fail("no seed lost a threadgroup while others had not started")


def test_consumers_before_producers_need_all_in_flight():
    text = (
        HEAD
        + """
kernel void k(device atomic_uint* c [[buffer(0)]], uint g [[threadgroup_position_in_grid]],
              uint n [[threadgroups_per_grid]]) {
  if (g >= n / 2) atomic_fetch_add_explicit(c, 1u, memory_order_relaxed);
  else while (atomic_load_explicit(c, memory_order_relaxed) < n / 2) {}
}
"""
    )
    kernel = Library("static.metal", text=text).kernel("k")
    for schedule in ("fifo", "random", "priority"):
        kernel(8, 1, [np.zeros(1, np.uint32)], schedule=schedule)
        kernel(8, 1, [np.zeros(1, np.uint32)], schedule=schedule, residency=5)
        kernel(8, 1, [np.zeros(1, np.uint32)], schedule=schedule, residency=1, order="reversed")
        with pytest.raises(FaultError) as error:
            kernel(8, 1, [np.zeros(1, np.uint32)], schedule=schedule, residency=4)
        assert error.value.faults[0].kind == "livelock"
        assert "4 of 8 threadgroups not started" in error.value.faults[0].message


def test_several_os_threads_agree_with_one():
    kernel = Library("two_stages.metal", text=TWO_STAGES).kernel("two_stages")
    for workers in (2, 3):
        _, sums, _, want = run(kernel, workers=6, threads=workers)
        assert (sums == want).all()


def test_several_os_threads_report_a_livelock():
    text = (
        HEAD
        + """
kernel void k(device atomic_uint* c [[buffer(0)]]) {
  while (atomic_load_explicit(c, memory_order_relaxed) == 0) {}
}
"""
    )
    kernel = Library("never.metal", text=text).kernel("k")
    with pytest.raises(FaultError) as error:
        kernel(4, 32, [np.zeros(1, np.uint32)], threads=2)
    assert {f.kind for f in error.value.faults} == {"livelock"}
    assert error.value.faults[0].location.line == 5


def test_several_os_threads_keep_the_time_limit():
    text = (
        HEAD
        + """
kernel void k(device uint* d [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  uint h = d[i];
  while (h != 1) h = (h | 2) * 8;
  d[i] = h;
}
"""
    )
    kernel = Library("loop.metal", text=text).kernel("k")
    begin = time.monotonic()
    with pytest.raises(FaultError) as error:
        kernel(8, 32, [np.zeros(256, np.uint32)], threads=2, time_limit=0.2)
    assert time.monotonic() - begin < 5
    assert {f.kind for f in error.value.faults} == {"timeout"}


def test_launches_from_several_python_threads(two_stages):
    def many(seed):
        for i in range(10):
            _, sums, _, want = run(two_stages, schedule="random", seed=100 * seed + i)
            assert (sums == want).all()
        with pytest.raises(FaultError):
            for i in range(24):
                run(two_stages, schedule="unfair", seed=i)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(many, range(8)))


def test_a_launch_works_after_a_fault(two_stages):
    with pytest.raises(FaultError):
        run(two_stages, workers=1, lost=1, seed=3, residency=1, time_limit=5)
        run(two_stages, schedule="unfair", time_limit=5, seed=1)
        pytest.fail("neither launch was faulty")
    _, sums, _, want = run(two_stages)
    assert (sums == want).all()


@pytest.mark.parametrize("gap", (1, 32, 64, 1024))
def test_a_wait_that_reads_two_places_is_a_livelock(gap):
    text = (
        HEAD
        + """
kernel void k(device atomic_uint* c [[buffer(0)]], constant uint& gap [[buffer(1)]]) {
  while (atomic_load_explicit(c, memory_order_relaxed) == 0 &&
         atomic_load_explicit(c + gap, memory_order_relaxed) == 0) {}
}
"""
    )
    kernel = Library("two.metal", text=text).kernel("k")
    with pytest.raises(FaultError) as error:
        kernel(2, 32, [np.zeros(2048, np.uint32), gap], time_limit=10)
    assert error.value.faults[0].kind == "livelock"


@pytest.mark.parametrize("interrupted", ({"preempt": 10}, {"lost": 1, "seed": 3}))
@pytest.mark.parametrize("threads", (1, 64))
def test_fifo_starts_the_next_while_one_is_interrupted(interrupted, threads):
    text = HEAD + (
        "kernel void meet(device atomic_uint* n [[buffer(0)]],\n"
        "                 device atomic_uint* gave_up [[buffer(1)]],\n"
        "                 uint t [[thread_index_in_threadgroup]]) {\n"
        "  if (t != 0) return;\n"
        "  atomic_fetch_add_explicit(n, 1u, memory_order_relaxed);\n"
        "  for (uint k = 0; k < 3000; ++k)\n"
        "    if (atomic_load_explicit(n, memory_order_relaxed) == 8u) return;\n"
        "  atomic_store_explicit(gave_up, 1u, memory_order_relaxed);\n"
        "}\n"
    )
    kernel = Library("meet.metal", text=text, checked=True).kernel("meet")
    n, gave_up = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    result = kernel(8, threads, [n, gave_up], **interrupted)
    assert result.started == 8
    assert (n[0] == 8 and not gave_up[0]) or result.lost


# ---- older values of atomics

PASSED_ON = (
    HEAD
    + """
kernel void passed_on(device atomic_uint* data [[buffer(0)]],
                      device atomic_uint* flag [[buffer(1)]], device uint* seen [[buffer(2)]],
                      uint g [[threadgroup_position_in_grid]],
                      uint i [[thread_index_in_threadgroup]]) {
  if (g == 0) {
    if (i != 0) return;
    atomic_store_explicit(data, 1u, memory_order_relaxed);
    FENCE;
    atomic_store_explicit(flag, 1u, memory_order_relaxed);
    return;
  }
  if (i == 0) {
    for (uint n = 0; n < 1000 && atomic_load_explicit(flag, memory_order_relaxed) == 0; ++n) {}
    FENCE;
    seen[0] = atomic_load_explicit(data, memory_order_relaxed);
    seen[1] = atomic_load_explicit(data, memory_order_relaxed);
  }
  threadgroup_barrier(mem_flags::mem_device);
  if (i == 1) seen[2] = atomic_load_explicit(data, memory_order_relaxed);
}
"""
)
DEVICE_FENCE = (
    "atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device)"
)


def passed_on(fence, **options):
    """What a reader saw, twice, behind the flag, and what its neighbour saw behind a barrier."""
    text = PASSED_ON.replace("FENCE", fence)
    kernel = Library("passed_on.metal", text=text, checked=True).kernel("passed_on")
    found = set()
    for seed in range(60):
        seen = np.zeros(3, np.uint32)
        args = [np.zeros(1, np.uint32), np.zeros(1, np.uint32), seen]
        kernel(2, 32, args, schedule="random", seed=seed, **options)
        found.add(tuple(seen.tolist()))
    return found


def test_loads_see_older_values_where_no_fence_orders_them():
    found = passed_on("(void)0", stale=2)
    assert {(0, 0, 1), (0, 1, 1), (1, 1, 1)} <= found
    # one place has one order: nobody goes back, across a barrier neither
    assert all(first <= second <= third for first, second, third in found)
    assert passed_on(DEVICE_FENCE, stale=2) == {(1, 1, 1)}
    assert passed_on("(void)0") == {(1, 1, 1)}


def test_a_worker_is_lost_within_its_first_events():
    text = (
        HEAD
        + """
kernel void k(device atomic_uint* c [[buffer(0)]]) {
  for (uint n = 0; n < 100; ++n) atomic_fetch_add_explicit(c, 1u, memory_order_relaxed);
}
"""
    )
    kernel = Library("counted.metal", text=text).kernel("k")
    counts = {}
    for within in (1, 32, 1000):
        for seed in range(20):
            c = np.zeros(1, np.uint32)
            kernel(2, 1, [c], lost=1, lost_within=within, seed=seed)
            counts.setdefault(within, set()).add(int(c[0]) - 100)
    assert counts[1] == {0}
    assert len(counts[32]) > 3 and max(counts[32]) < 32
    assert max(counts[1000]) == 100  # it ends before that
