"""The sample shaders give numpy's answer under any schedule; the checking build has nothing to say.

A failure names its seed: `launch(ALL[name](default_rng(seed)), **schedule(seed))` repeats it.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
from samples import ALL, Sample, persist, scan_lookback

from torch_mps_fusion.metal_host import FaultError, Library, Result

SEEDS = 50
CHECKED_SEEDS = 3
SCHEDULES = ("random", "priority", "fifo", "reverse")
ORDERS = ("shuffled", "forward", "reversed")


@functools.cache
def library(path: object, constants: tuple[tuple[str, object], ...], checked: bool) -> Library:
    return Library(str(path), dict(constants), checked=checked)


def launch(sample: Sample, checked: bool = False, **options: object) -> Result:
    built = library(sample.path, tuple(sample.constants.items()), checked)
    memory = [sample.threadgroup_bytes] if sample.threadgroup_bytes else None
    return built.kernel(sample.kernel)(
        sample.grid, sample.threads, sample.buffers, threadgroup_memory=memory, **options
    )


def schedule(seed: int) -> dict[str, object]:
    """Half of the seeds run at random; the rest take the other schedules and limited residency."""
    return {
        "seed": seed,
        "schedule": "random" if seed % 2 else SCHEDULES[seed // 2 % 4],
        "order": ORDERS[seed % 3],
        "residency": (0, 0, 1, 2, 3)[seed % 5],
    }


@pytest.mark.parametrize("name", ALL)
def test_numpy_agrees_under_fifty_seeds(name: str) -> None:
    traces = set()
    for seed in range(SEEDS):
        sample = ALL[name](np.random.default_rng(seed))
        try:
            traces.add(launch(sample, **schedule(seed)).trace)
            sample.verify()
        except (FaultError, AssertionError) as error:
            raise AssertionError(f"seed {seed}, {schedule(seed)}: {error}") from error
    assert len(traces) > SEEDS // 4, "the seeds hardly change the schedule"


@pytest.mark.parametrize("name", ALL)
def test_checks_are_silent(name: str) -> None:
    for seed in range(CHECKED_SEEDS):
        sample = ALL[name](np.random.default_rng(seed))
        launch(sample, checked=True, preempt=7, **schedule(2 * seed + 1))
        sample.verify()


def test_same_seed_same_run() -> None:
    runs = [launch(ALL["persist"](np.random.default_rng(1)), **schedule(7)) for _ in range(2)]
    assert runs[0].trace == runs[1].trace and runs[0].counters == runs[1].counters


def test_static_roles_need_residency() -> None:
    """Consumers first: with all 8 threadgroups resident it ends, with 4 only consumers run."""
    rng = np.random.default_rng(0)
    ends = persist(rng, "static", groups=8)
    launch(ends, schedule="random", seed=1)
    ends.verify()
    with pytest.raises(FaultError) as caught:
        launch(persist(rng, "static", groups=8), residency=4)
    assert [f.kind for f in caught.value.faults] == ["livelock"]
    bounded = persist(rng, "static", groups=8, spin=50)
    launch(bounded, residency=4)
    assert bounded.buffers[3][2] == 1, "the bounded form sets its own error word"


WAITING = {"scan_lookback": scan_lookback, "persist": persist}
UNFAIR_SEEDS = range(1, 17)


@pytest.mark.parametrize("name", WAITING)
def test_unfair_mode_stops_an_unbounded_wait(name: str) -> None:
    """A worker that took a ticket is starved: the others wait for it, and that is reported."""
    stopped = 0
    for seed in UNFAIR_SEEDS:
        sample = WAITING[name](np.random.default_rng(seed))
        try:
            launch(sample, schedule="unfair", seed=seed)
            sample.verify()
        except FaultError as error:
            (fault,) = error.faults
            assert fault.kind == "livelock", fault
            text = sample.path.read_text().split("\n")
            assert fault.location is not None
            assert Path(fault.location.file).name == sample.path.name
            assert "atomic_load_explicit" in text[fault.location.line - 1], fault
            stopped += 1
    assert stopped > len(UNFAIR_SEEDS) // 2


@pytest.mark.parametrize("name", WAITING)
def test_unfair_mode_ends_a_bounded_wait_in_its_own_error(name: str) -> None:
    """The same with a bound: every launch ends, right or with the kernel's own error word set."""
    errors = 0
    for seed in UNFAIR_SEEDS:
        sample = WAITING[name](np.random.default_rng(seed), spin=100)
        launch(sample, schedule="unfair", seed=seed)
        ctl = sample.buffers[{"scan_lookback": 5, "persist": 3}[name]]
        error = ctl[{"scan_lookback": 1, "persist": 2}[name]]
        if error == 0:
            sample.verify()
        errors += error != 0
    assert errors > len(UNFAIR_SEEDS) // 2


def test_bounded_wait_is_right_when_it_need_not_give_up() -> None:
    for seed in range(10):
        scan = scan_lookback(np.random.default_rng(seed), spin=1_000_000)
        launch(scan, **schedule(seed))
        scan.verify()


TWO_WORDS = """#include <metal_stdlib>
using namespace metal;
kernel void two_words(device atomic_uint* c [[buffer(0)]], constant uint& gap [[buffer(1)]]) {
  while (atomic_load_explicit(c, memory_order_relaxed) == 0 &&
         atomic_load_explicit(c + gap, memory_order_relaxed) == 0) {
  }
}
"""


@pytest.mark.parametrize("gap", [1, 31, 32, 64, 1024])
def test_a_wait_on_two_words_is_a_livelock_wherever_they_lie(gap: int) -> None:
    built = Library("two_words.metal", text=TWO_WORDS)
    with pytest.raises(FaultError) as caught:
        built.kernel("two_words")(1, 1, [np.zeros(2048, np.uint32), gap], time_limit=2.0)
    assert [f.kind for f in caught.value.faults] == ["livelock"]
