"""Where workers wait, on a virtual clock: every threadgroup costs the bytes that it moves.

Threadgroups of a dispatch go to the worker that is free first; a dispatch after a barrier starts
when the one before has ended. Idle locates imbalance: it is not time, nor all to be recovered.
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from torch_mps_fusion.explain import aligned
from torch_mps_fusion.plan import Program

from .. import receipts
from ..layers import SHAPES, ours


@dataclass(frozen=True)
class Stage:
    """A dispatch on the virtual clock (bytes)."""

    name: str
    start: float
    end: float
    groups: int
    idle: float  # of all workers, between start and end
    waiting: int  # workers without a threadgroup of it


def schedule(program: Program, workers: int) -> list[Stage]:
    """Greedy placement. ValueError for no workers."""
    if workers < 1:
        raise ValueError(f"workers: got {workers}; accepted: 1 or more")
    free = [0.0] * workers
    stages = []
    for d in program.dispatches:
        groups = max(1, d.grid[0] * d.grid[1] * d.grid[2])
        start = max(free) if d.barrier or not stages else min(free)
        free = [max(start, f) for f in free]
        heapq.heapify(free)
        cost, used = d.bytes / groups, 0
        before = list(free)
        for _ in range(groups):
            heapq.heappush(free, heapq.heappop(free) + cost)
        end = max(free)
        used = min(groups, workers)
        idle = sum(end - b for b in before) - groups * cost
        stages.append(Stage(d.stage, start, end, groups, idle, workers - used))
    return stages


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, default=160)
    parser.add_argument("--clock", choices=("virtual", "software"), default="virtual")
    parser.add_argument("--shape", nargs=1, choices=SHAPES, default=["27b"])
    parser.add_argument("--rows", type=int, default=8)


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    if options.clock == "software":
        raise NotImplementedError(
            "clock 'software' is deferred, because it is an instrumented build of a persistent "
            "kernel (its overhead must be paired with the plain one on a device)"
        )
    name = "small" if options.smoke else options.shape[0]
    found, records = {}, []
    for arm in ours(SHAPES[name], options.device, options.rows, torch.bfloat16):
        if not arm.shader:
            continue
        program = arm.plan(SHAPES[name], options.device, options.rows, torch.bfloat16)
        stages = schedule(program, options.workers)
        whole = stages[-1].end
        lines = [("dispatch", "groups", "of the run", "workers without work", "idle a worker")]
        for s in stages:
            lines.append(
                (
                    s.name,
                    str(s.groups),
                    f"{(s.end - s.start) / whole:.1%}",
                    f"{s.waiting} of {options.workers}",
                    f"{s.idle / options.workers / whole:.1%}",
                )
            )
        idle = sum(s.idle for s in stages) / options.workers / whole
        print(f"{arm.name}: virtual clock, {options.workers} workers, mean idle {idle:.1%} of it")
        print("\n".join(aligned(lines)))
        found[arm.name] = {"idle_share": idle, "stages": [vars(s) for s in stages]}
        records.append(
            receipts.arm(
                arm.name,
                emulated=True,
                instrumented=True,
                replay="none",
                dispatches=len(stages),
                counts={"idle_share": idle},
            )
        )
    print("virtual: bytes, not time. A persistent variant joins when it runs here.")
    yield receipts.new(
        options,
        "cpu-emulation",
        scope="layer",
        rows=options.rows,
        dtype="bfloat16",
        arms=records,
        results={"timeline": found, "workers": options.workers},
        needs=["worker times: an instrumented persistent kernel on a Mac or an NVIDIA GPU"],
        caveats=["all workers resident, all bytes alike, no cache, no start-up"],
    )
