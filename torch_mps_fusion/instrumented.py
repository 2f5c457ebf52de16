"""What the tasks of a persistent dispatch did in one run of the instrumented build.

    with instrumented.build():
        torch.ops.mps_fusion.gdn_layer_(.., variant="mega")
    run = instrumented.read(tasks, "cpu")

The build differs from the plain one by the function constant `kTimes`; its results are the same
bits. Its ticks are those of a clock that takes part in the run: on Metal a threadgroup that counts,
in metal_host the scheduler's steps, on CUDA nanoseconds. They show where workers wait; they are not
the plain build's times, and nothing is chosen by them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from .plan import TASK_STAGES, Task, Tasks
from .timeline import Span

SIMDS = 8  # SIMD groups of a worker
WORD = 2**32
CLOCKS = {
    "cpu": "steps of metal_host's scheduler",
    "cuda": "ns",
    "mps": "ticks of a counting group",
}


@dataclass(frozen=True)
class Wait:
    """What one SIMD group of a worker waited for before its part of a task.

    begin, end: ticks. polls: of the counter that took most of them, 1 if everything was there.
    """

    simd: int
    begin: float
    end: float
    counter: int
    polls: int


@dataclass(frozen=True)
class Timed:
    """A task as it ran, by ticket; ticks from the first task on."""

    task: int
    worker: int
    drawn: float
    over: float
    waits: tuple[Wait, ...]

    @property
    def ready(self) -> float:
        """When all that it waited for was there."""
        return max([self.drawn, *(w.end for w in self.waits)])


@dataclass(frozen=True)
class Run:
    """All tasks of a launch, in ticket order."""

    tasks: Tasks
    timed: list[Timed]

    @property
    def spans(self) -> list[Span]:
        return [Span(t.task, t.worker, t.drawn, t.ready, t.over) for t in self.timed]

    def wait_table(self) -> list[tuple[str, ...]]:
        """A line a stage: tasks, how many polled more than once, what they waited, by what most."""
        lines: list[tuple[str, ...]] = [
            ("stage", "tasks", "waited", "ticks", "of the run", "polls", "longest for")
        ]
        whole = sum(t.over - t.drawn for t in self.timed)
        for stage in TASK_STAGES:
            mine = [t for t in self.timed if self.tasks.records[t.task].stage == stage]
            if not mine:
                continue
            ticks = sum(t.ready - t.drawn for t in mine if t.waits)
            longest = max((w for t in mine for w in t.waits), key=lambda w: w.polls, default=None)
            lines.append(
                (
                    stage,
                    str(len(mine)),
                    str(sum(any(w.polls > 1 for w in t.waits) for t in mine)),
                    f"{ticks:.0f}",
                    f"{ticks / whole:.1%}" if whole else "",
                    str(sum(w.polls for t in mine for w in t.waits)),
                    f"counter {longest.counter}" if longest and longest.polls > 1 else "",
                )
            )
        return lines


@contextlib.contextmanager
def build(geometry: str = "") -> Iterator[None]:
    """Persistent dispatches of calls in this block are of the instrumented build. geometry:
    further changes of the launch geometry, ";workers=6", say."""
    before = torch.ops.mps_fusion._override_geometry(geometry + ";times=1")
    try:
        yield
    finally:
        torch.ops.mps_fusion._override_geometry(before)


def read(tasks: Tasks, device: str) -> Run:
    """The last instrumented launch on that kind of device; waits for it.

    Raises:
        ValueError: there was none, or it was of another program than `tasks`.
    """
    times = torch.ops.mps_fusion._task_times(torch.device(device).type)
    rows = 1 + SIMDS
    if times.numel() != 4 * rows * len(tasks.records):
        raise ValueError(
            f"tasks: got {len(tasks.records)}; the last instrumented launch on {device} had "
            f"{times.numel() // (4 * rows)}"
        )
    words = (times.cpu().to(torch.int64) % WORD).tolist()
    return run_of(tasks, [words[i : i + 4] for i in range(0, len(words), 4)])


def run_of(tasks: Tasks, rows: list[list[int]]) -> Run:
    """From the rows of four words that the kernel wrote: a TaskTime for each task, then a TaskWait
    for each of its SIMD groups (shaders/include/tasks.h)."""
    n = len(tasks.records)
    start = min((row[1] for row in rows[:n]), key=lambda t: (t - rows[0][1] + WORD // 2) % WORD)

    def ticks(word: int) -> float:
        return float((word - start) % WORD)

    timed = []
    for i, record in enumerate(tasks.records):
        worker, drawn, over, _ = rows[i]
        noted = rows[n + SIMDS * i : n + SIMDS * (i + 1)] if waits_of(tasks, record) else []
        waits = tuple(Wait(s, ticks(w[0]), ticks(w[1]), w[2], w[3]) for s, w in enumerate(noted))
        timed.append(Timed(i, worker, ticks(drawn), ticks(over), waits))
    return Run(tasks, timed)


def waits_of(tasks: Tasks, record: Task) -> list[tuple[int, int]]:
    """The waits of a task that are for something."""
    return [wait for wait in tasks.waits(record) if wait[1]]
