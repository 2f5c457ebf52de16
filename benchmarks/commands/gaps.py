"""Gaps between the dispatches of one window, and what the intervals add up to.

Intervals + gaps - overlaps are the window. A producer's tail and a consumer's head lie inside the
kernel intervals and stay there when the boundary is gone. On a CPU there is a trace and no time.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from torch_mps_fusion.explain import aligned

from .. import receipts
from ..errors import BenchmarkError
from ..layers import SHAPES, Layer, Ours, ours
from ..metal_queue import MetalQueue
from ..timers import capture
from .layer import memory, record

NOTE = (
    "A producer's tail and a consumer's head are inside the intervals; without the boundary "
    "they remain."
)
WARM_UP = 8
Interval = tuple[str, float, float]


@dataclass(frozen=True)
class Account:
    """Seconds of a window: `covered` is the sum of the intervals."""

    window: float
    covered: float
    gaps: float
    overlaps: float

    def balances(self, tick: float) -> bool:
        return abs(self.covered + self.gaps - self.overlaps - self.window) <= tick


def account(intervals: Sequence[Interval]) -> Account:
    """Of dispatches by start and end. ValueError for none, or one that ends before it starts."""
    if not intervals:
        raise ValueError("intervals: got none; accepted: one or more")
    for name, start, end in intervals:
        if end < start:
            raise ValueError(f"intervals: {name} ends {start - end:g} s before it starts")
    ordered = sorted(intervals, key=lambda i: i[1])
    gaps = overlaps = 0.0
    reached = ordered[0][1]
    for _, start, end in ordered:
        gaps += max(0.0, start - reached)
        overlaps += max(0.0, min(reached, end) - start)
        reached = max(reached, end)
    covered = sum(end - start for _, start, end in ordered)
    return Account(reached - ordered[0][1], covered, gaps, overlaps)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--window",
        choices=("mixer", "ffn_to_gdn"),
        default="mixer",
        help="ffn_to_gdn: deferred, because the package has no FFN",
    )
    parser.add_argument("--shape", nargs=1, choices=SHAPES, default=["27b"])
    parser.add_argument("--rows", type=int, default=8)


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    if options.window == "ffn_to_gdn":
        raise NotImplementedError("window ffn_to_gdn is deferred, because the package has no FFN")
    if options.smoke:
        options.shape = ["small"]
    shape = SHAPES[options.shape[0]]
    arms = [a for a in ours(shape, options.device, options.rows, torch.bfloat16) if a.shader]
    if options.device == "cpu":
        yield traced(options, arms)
    else:
        layer = Layer(shape, options.device, options.seed)
        with torch.no_grad():
            yield from (measured(options, arm, layer) for arm in arms)
    print(NOTE)


def traced(options: argparse.Namespace, arms: list[Ours]) -> receipts.Receipt:
    shape, found = SHAPES[options.shape[0]], {}
    for arm in arms:
        program = arm.plan(shape, options.device, options.rows, torch.bfloat16)
        lines = [("dispatch", "after a barrier", "groups", "read", "written")]
        for d in program.dispatches:
            groups = d.grid[0] * d.grid[1] * d.grid[2]
            read, written = sum(v.read for v in d.views), sum(v.written for v in d.views)
            lines.append(
                (d.stage, "yes" if d.barrier else "no", str(groups), f"{read:,}", f"{written:,}")
            )
        found[arm.name] = [list(line) for line in lines[1:]]
        print(f"{arm.name}: {len(program.dispatches)} dispatches")
        print("\n".join(aligned(lines)))
    print("trace only: GPU start and end of dispatches need a Mac or an NVIDIA GPU")
    return receipts.new(
        options,
        "arithmetic",
        scope="layer",
        rows=options.rows,
        dtype="bfloat16",
        results={"trace": found, "note": NOTE},
        needs=["intervals: a Mac or an NVIDIA GPU"],
    )


def measured(options: argparse.Namespace, arm: Ours, layer: Layer) -> receipts.Receipt:
    how, tick, intervals = {"cuda": profiled, "mps": timed}[options.device](options, arm, layer)
    found = account(intervals)
    start = min(i[1] for i in intervals)
    lines = [("dispatch", "start us", "end us")]
    lines += [(n, f"{(s - start) * 1e6:.2f}", f"{(e - start) * 1e6:.2f}") for n, s, e in intervals]
    print("\n".join(aligned(lines)))
    print(
        f"{arm.name}: window {found.window * 1e6:.2f} us, intervals {found.covered * 1e6:.2f}, "
        f"gaps {found.gaps * 1e6:.2f}, overlaps {found.overlaps * 1e6:.2f}"
    )
    return receipts.new(
        options,
        options.device,
        scope="layer",
        tier=1,
        rows=options.rows,
        dtype="bfloat16",
        arms=[record(arm, layer, options.rows, instrumented=True, replay="none")],
        results={
            "part": arm.name,
            "intervals_s": [list(i) for i in intervals],
            "how": how,
            "account_s": vars(found),
            "note": NOTE,
            "failed": [] if found.balances(tick) else [f"{arm.name}: does not balance"],
        },
        caveats=["each dispatch apart: the window is that of the instrumented run"],
    )


def timed(
    options: argparse.Namespace, arm: Ours, layer: Layer
) -> tuple[str, float, list[Interval]]:
    queue = MetalQueue(options.deadline)
    program = arm.plan(layer.shape, "mps", options.rows, torch.bfloat16)
    encoded = queue.encoded(program, memory(arm, layer, layer.hidden(options.rows)))
    for _ in range(WARM_UP):
        queue.intervals(encoded)
    return "a command buffer for every dispatch", 1e-7, queue.intervals(encoded)


def profiled(
    options: argparse.Namespace, arm: Ours, layer: Layer
) -> tuple[str, float, list[Interval]]:
    """Kernel intervals as CUPTI gives them to torch's profiler. They are those of one replay of a
    graph: plain calls would show the host's time between launches."""
    hidden, states = layer.hidden(options.rows), layer.states()
    replay = capture(lambda: arm(layer, hidden, states)).replay
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(WARM_UP + 1):
            replay()
            torch.cuda.synchronize()
    found = [
        (e.name, e.time_range.start * 1e-6, e.time_range.end * 1e-6)
        for e in profile.events()
        if e.device_type == torch.autograd.DeviceType.CUDA
    ]
    if not found or len(found) % (WARM_UP + 1):
        raise BenchmarkError(f"{arm.name}: the profiler saw {len(found)} kernels: no intervals")
    found.sort(key=lambda i: i[1])
    return "CUPTI, a graph replay", 1e-6, found[-(len(found) // (WARM_UP + 1)) :]
