"""Where workers wait: on a virtual clock, or as the instrumented persistent kernels note it.

Virtual: every threadgroup costs the bytes that it moves; those of a dispatch go to the worker that
is free first, and a dispatch after a barrier starts when the one before has ended. Idle locates
imbalance: it is not time, nor all to be recovered.

Software (`--clock software`): hybrid and mega run once in the instrumented build, whose ticks are
its own: where its workers wait, not how long the plain build takes.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from torch_mps_fusion import host_kernels, instrumented, timeline
from torch_mps_fusion.explain import PERSISTENT, aligned
from torch_mps_fusion.plan import Program

from .. import receipts
from ..layers import SHAPES, Layer, Ours, ours


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
    parser.add_argument(
        "--workers", type=int, help="default: 160, those of the device on the software clock"
    )
    parser.add_argument("--clock", choices=("virtual", "software"), default="virtual")
    parser.add_argument(
        "--shape", nargs=1, choices=SHAPES, help="default: 27b; small if it is emulated"
    )
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="software: draws mega (.svg, .png)"
    )


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    emulated = options.clock == "software" and options.device == "cpu"
    name = "small" if options.smoke or emulated else "27b"
    if options.shape and not options.smoke:
        name = options.shape[0]
    yield software(options, name) if options.clock == "software" else virtual(options, name)


def software(options: argparse.Namespace, name: str) -> receipts.Receipt:
    """One instrumented launch of each persistent variant."""
    layer = Layer(SHAPES[name], options.device, options.seed)
    hidden, clock = layer.hidden(options.rows), instrumented.CLOCKS[options.device]
    geometry = f";workers={options.workers}" if options.workers else ""
    found, records = {}, []
    for variant in PERSISTENT:
        program = Ours(variant, geometry).plan(
            SHAPES[name], options.device, options.rows, torch.bfloat16
        )
        tasks = next(d.tasks for d in program.dispatches if d.tasks)
        with instrumented.build(geometry), all_in_turn(options):
            Ours(variant)(layer, hidden, layer.states())
            noted = instrumented.read(tasks, options.device)
        print(f"{variant}, {name}, {options.rows} rows: ticks of an instrumented run ({clock})")
        print("\n".join(aligned(noted.wait_table())), end="\n\n")
        print("\n".join(aligned(timeline.stage_table(tasks, noted.spans, "ticks"))), end="\n\n")
        print(timeline.busy_line(tasks, noted.spans, "ticks"), end="\n\n")
        print("\n".join(timeline.text_picture(tasks, noted.spans, "ticks")), end="\n\n")
        if options.picture and variant == "mega":
            title = f"{variant}, {name}, {options.rows} rows\nan instrumented run ({clock})"
            timeline.draw(
                tasks, noted.spans, title, options.picture,
                option="--picture", unit="ticks", axis=clock,
            )  # fmt: skip
        header, *lines = noted.wait_table()
        found[variant] = [dict(zip(header, line, strict=True)) for line in lines]
        records.append(
            receipts.arm(
                variant,
                emulated=options.device == "cpu",
                instrumented=True,
                replay="none",
                dispatches=len(program.dispatches),
                counts={"tasks": len(tasks.records), "workers": tasks.workers},
            )
        )
    return receipts.new(
        options,
        receipts.of_shaders(options.device),
        scope="layer",
        rows=options.rows,
        dtype="bfloat16",
        arms=records,
        results={"part": f"software-{name}-{options.rows}", "waits": found, "clock": clock},
        caveats=[
            "the instrumented build's ticks: its notes and its clock take part in the run",
            "one launch of each variant",
        ],
    )


def all_in_turn(options: argparse.Namespace) -> contextlib.AbstractContextManager:
    """On CPU tensors all threads of the launch take turns at random, so that a worker's ticks pass
    while others work."""
    if options.device != "cpu":
        return contextlib.nullcontext()
    return host_kernels.running(schedule="random", seed=options.seed + 1)


def virtual(options: argparse.Namespace, name: str) -> receipts.Receipt:
    """Every shader variant's dispatches over workers."""
    workers = options.workers or 160
    found, records = {}, []
    for arm in ours(SHAPES[name], options.device, options.rows, torch.bfloat16):
        if not arm.shader:
            continue
        program = arm.plan(SHAPES[name], options.device, options.rows, torch.bfloat16)
        stages = schedule(program, workers)
        whole = stages[-1].end
        lines = [("dispatch", "groups", "of the run", "workers without work", "idle a worker")]
        for s in stages:
            lines.append(
                (
                    s.name,
                    str(s.groups),
                    f"{(s.end - s.start) / whole:.1%}",
                    f"{s.waiting} of {workers}",
                    f"{s.idle / workers / whole:.1%}",
                )
            )
        idle = sum(s.idle for s in stages) / workers / whole
        print(f"{arm.name}: virtual clock, {workers} workers, mean idle {idle:.1%} of it")
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
    print("virtual: bytes, not time.")
    return receipts.new(
        options,
        "cpu-emulation",
        scope="layer",
        rows=options.rows,
        dtype="bfloat16",
        arms=records,
        results={"timeline": found, "workers": workers},
        needs=["worker times: `timeline --clock software` on a Mac or an NVIDIA GPU"],
        caveats=["all workers resident, all bytes alike, no cache, no start-up"],
    )
