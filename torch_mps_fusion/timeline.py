"""The tasks of a persistent dispatch over its workers: as text, as a picture.

`spans` places them by estimated times (csrc/plan/task_times.h): nothing was measured.
`instrumented.Run.spans` are what a run of the instrumented build noted.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .plan import TASK_STAGES, Tasks

LETTERS = dict(zip(TASK_STAGES, "ihcog", strict=True))
COLORS = dict(
    zip(TASK_STAGES, ("#4c78a8", "#e45756", "#72b7b2", "#f2a93b", "#54a24b"), strict=True)
)
COLUMNS = 96  # characters of a line of text
LINES = 16  # workers that the text shows, at most


@dataclass
class Span:
    """A task on a worker, in microseconds by estimate, in ticks if noted: drawn, all that it waits
    for is there, over."""

    task: int
    worker: int
    drawn: float
    ready: float
    end: float


def spans(tasks: Tasks) -> list[Span]:
    """Each task, by ticket: the next one goes to the worker that is free first, which waits until
    the tasks that the record waits for are over."""
    if len(tasks.times_us) != len(tasks.records):
        raise ValueError("tasks: no estimated times; `plan_layer` makes programs that have them")
    free = [(0.0, worker) for worker in range(tasks.workers)]
    over = [0.0] * tasks.counters
    found = []
    for ticket, (task, us) in enumerate(zip(tasks.records, tasks.times_us, strict=True)):
        drawn, worker = heapq.heappop(free)
        ready = max([drawn, *(over[counter] for counter, count in tasks.waits(task) if count)])
        heapq.heappush(free, (ready + us, worker))
        for counter, _ in tasks.signals(task):
            over[counter] = max(over[counter], ready + us)
        found.append(Span(ticket, worker, drawn, ready, ready + us))
    return found


def stage_table(tasks: Tasks, found: list[Span], unit: str = "us") -> list[tuple[str, ...]]:
    """A line a stage: tasks, the time of one, when they begin and end, what they waited."""
    lines: list[tuple[str, ...]] = [
        ("stage", "letter", "tasks", f"{unit} each", "first begins", "last ends", f"waited {unit}")
    ]
    for stage in TASK_STAGES:
        mine = [s for s in found if tasks.records[s.task].stage == stage]
        if not mine:
            continue
        each = sum(s.end - s.ready for s in mine) / len(mine)
        lines.append(
            (
                stage,
                LETTERS[stage],
                str(len(mine)),
                f"{each:.2f}",
                f"{min(s.ready for s in mine):.1f}",
                f"{max(s.end for s in mine):.1f}",
                f"{sum(s.ready - s.drawn for s in mine):.1f}",
            )
        )
    return lines


def busy_line(tasks: Tasks, found: list[Span], unit: str = "us") -> str:
    """How much of the workers' time is work, in words."""
    end = max(s.end for s in found)
    work = sum(s.end - s.ready for s in found)
    waits = sum(s.ready - s.drawn for s in found)
    whole = end * tasks.workers
    return (
        f"{len(found)} tasks on {tasks.workers} workers, {end:.1f} {unit}: "
        f"{work / whole:.1%} work, {waits / whole:.1%} waiting, "
        f"{1 - (work + waits) / whole:.1%} out of tasks"
    )


def text_picture(tasks: Tasks, found: list[Span], unit: str = "us") -> list[str]:
    """Workers as lines, time from left to right; a letter is the stage that a worker is in, a dot
    waits. At most LINES workers are shown, evenly chosen."""
    end = max(s.end for s in found)
    shown = sorted({i * tasks.workers // LINES for i in range(LINES)})
    rows = {worker: [" "] * COLUMNS for worker in shown}
    for s in found:
        if s.worker not in rows:
            continue
        letter = LETTERS[tasks.records[s.task].stage]
        for column in range(COLUMNS):
            at = (column + 0.5) / COLUMNS * end
            if s.drawn <= at < s.end:
                rows[s.worker][column] = letter if at >= s.ready else "."
    lines = [f"{worker:>6} |{''.join(row)}|" for worker, row in rows.items()]
    return [*lines, f"{'worker':>6} 0{f'{end:.1f} {unit}':>{COLUMNS}}"]


def draw(
    tasks: Tasks,
    found: list[Span],
    title: str,
    path: Path,
    *,
    option: str = "--program",
    unit: str = "us",
    axis: str = "microseconds (estimate)",
) -> None:
    """Writes the picture; the suffix says in which format (.svg, .png). Its description is
    `busy_line`, so that one can tell whether a picture is of today's program. option: what named
    `path`, for messages.

    Raises:
        ValueError: another suffix, or matplotlib is not installed.
    """
    if path.suffix not in (".svg", ".png"):
        raise ValueError(f"{option}: got {str(path)!r}; accepted: a name that ends in .svg or .png")
    try:
        import matplotlib
    except ImportError:
        raise ValueError(
            f"{option} FILE needs matplotlib (the extra `bench`); without FILE the tasks are text"
        ) from None
    matplotlib.use("agg")
    # Equal programs make equal files.
    matplotlib.rcParams["svg.hashsalt"] = "torch_mps_fusion"
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    figure, axes = pyplot.subplots(figsize=(10, 4.6), layout="constrained")
    bars: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for s in found:
        stage = tasks.records[s.task].stage
        bars.setdefault(stage, {}).setdefault(s.worker, []).append((s.ready, s.end - s.ready))
        if s.ready > s.drawn:
            bars.setdefault("waits", {}).setdefault(s.worker, []).append(
                (s.drawn, s.ready - s.drawn)
            )
    colors = COLORS | {"waits": "#d8d8d8"}
    style: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.2}
    for stage, workers in bars.items():
        for worker, times in workers.items():
            axes.broken_barh(times, (worker - 0.5, 1), facecolor=colors[stage], **style)
    axes.set(xlabel=axis, ylabel="worker", title=title)
    axes.set_xlim(0, max(s.end for s in found))
    axes.set_ylim(tasks.workers - 0.5, -0.5)
    axes.legend(
        handles=[Patch(color=colors[stage], label=stage) for stage in colors if stage in bars],
        ncols=len(bars), loc="upper center", bbox_to_anchor=(0.5, -0.12), frameon=False,
    )  # fmt: skip
    metadata: dict[str, str | None] = {"Description": busy_line(tasks, found, unit)}
    if path.suffix == ".svg":
        metadata["Date"] = None
    figure.savefig(path, dpi=150, metadata=metadata)
    pyplot.close(figure)
