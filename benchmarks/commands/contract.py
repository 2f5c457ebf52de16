"""The scheduler contract: requirements 32 to 42 of the study as cases with verdicts.

Programs are the layer's own where it has what a case needs; hand-offs inside one dispatch, with the
faults that are injected, are a probe kernel. No case measures a time.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch

from torch_mps_fusion.metal_host import FaultError

from .. import emulation, facts, probes, receipts
from ..errors import BenchmarkError, DeadlineExceeded
from ..layers import SHAPES, Layer, Ours, ours

ROWS, SEEDS = 4, 3
GEOMETRIES = (";rule=r1s4", ";rule=r2s4")
RUNS = 200  # hand-offs on a device
DEADLINE = 30.0
ONLY_EMULATED = "deferred here, because only the emulator"
PARTS, SUM = 4, 100
POISON = 0xDEADBEEF
TIMED_OUT, CANCELLED = 1, 2


@dataclass(frozen=True)
class Verdict:
    """`kept`: True, False, or None where the case is deferred; `detail` says what was seen."""

    kept: bool | None
    detail: str


@dataclass(frozen=True)
class Handoff:
    """What the probe left: error word, outputs, and what threads did, where an emulator saw it."""

    error: int
    out: np.ndarray
    spins: int | None = None
    fences: int | None = None

    @property
    def untouched(self) -> bool:
        return bool((self.out == POISON).all())

    @property
    def right(self) -> bool:
        return bool((self.out == SUM + 1 + np.arange(len(self.out))).all())


def probe(consumers: int = 3, *, no_fence: bool = False, stall: bool = False) -> probes.Probe:
    constants = {"kNoFence": int(no_fence), "kStall": int(stall)}
    return probes.Probe("handoff", constants, 1 + consumers, 32)


def handoff(
    consumers: int = 3,
    *,
    launcher: probes.Launcher | None = None,
    no_fence: bool = False,
    stall: bool = False,
    cancel: bool = False,
    **options: object,
) -> Handoff:
    """One hand-off, on a device or in metal_host, whose `options` choose the schedule."""
    parts = np.zeros(PARTS, np.uint32)
    flags = np.zeros(PARTS + 1, np.uint32)
    out = np.full(consumers, POISON, np.uint32)
    arrays = [parts, flags, np.array([int(cancel)], np.uint32), out]
    kernel = probe(consumers, no_fence=no_fence, stall=stall)
    if launcher is not None:
        probes.run(launcher, kernel, arrays)
        return Handoff(int(flags[PARTS]), out)
    counters = probes.emulate(kernel, arrays, **options).counters
    return Handoff(int(flags[PARTS]), out, counters.spins, counters.fences)


@cache
def launcher_of(device: str) -> probes.Launcher | None:
    """Where hand-offs run that need no emulator."""
    return None if device == "cpu" else probes.launcher_of(device, DEADLINE)


def shaders(device: str) -> list[Ours]:
    found = ours(SHAPES["small"], device, ROWS, torch.bfloat16)
    return [a for a in found if a.shader]


def tasks(device: str) -> Verdict:
    """32: the checker passes every program, and finds a barrier and a producer that were taken
    out."""
    seen = []
    for arm in shaders(device):
        program = arm.plan(SHAPES["small"], device, ROWS, torch.bfloat16)
        if program.faults():
            return Verdict(False, f"{arm.name}: {program.faults()[0]}")
        last = len(program.dispatches) - 1
        unordered = [
            replace(d, barrier=d.barrier and i != last) for i, d in enumerate(program.dispatches)
        ]
        for what, dispatches in (("barrier", unordered), ("producer", program.dispatches[1:])):
            if not replace(program, dispatches=dispatches).faults():
                return Verdict(False, f"{arm.name}: a missing {what} is not found")
        seen.append(arm.name)
    return Verdict(True, f"{', '.join(seen)}: sound, and unsound without a barrier or a producer")


def visibility(device: str) -> Verdict:
    """33: a hand-off is right under hostile schedules, and a removed fence is caught; on a device,
    every one of many is right."""
    if launcher := launcher_of(device):
        wrong = sum(not handoff(launcher=launcher).right for _ in range(RUNS))
        return Verdict(wrong == 0, f"{RUNS} hand-offs on the device, {wrong} wrong")
    for seed in range(SEEDS):
        for schedule in ("random", "priority"):
            found = handoff(seed=seed, schedule=schedule)
            if not found.right:
                return Verdict(False, f"{schedule}, seed {seed}: wrong sums {found.out}")
    try:
        handoff(no_fence=True)
    except FaultError as error:
        return Verdict(True, f"a removed fence is a {error.faults[0].kind}")
    return Verdict(False, "a removed fence is not caught")


def norm_dependency(device: str) -> Verdict:
    """34: a reduction whose last part never comes ends with the error word, not with a sum."""
    found = handoff(stall=True, launcher=launcher_of(device))
    kept = found.error == TIMED_OUT and found.untouched
    return Verdict(kept, f"error word {found.error}, outputs untouched: {found.untouched}")


def recurrence(device: str) -> Verdict:
    """35: every slice width, and a loop over single tokens, give the bits of one call."""
    layer = Layer(SHAPES["small"], device, 0)
    hidden = layer.hidden(ROWS)
    first = shaders(device)[0].variant
    want = Ours(first)(layer, hidden, layer.states())
    arms = [Ours(first, g) for g in GEOMETRIES]
    for arm in arms:
        if not all(map(torch.equal, arm(layer, hidden, layer.states()), want)):
            return Verdict(False, f"{arm.name}: other bits")
    for arm in shaders(device):
        states = layer.states()
        parts = [arm(layer, hidden[:, t : t + 1], states)[0] for t in range(ROWS)]
        if not all(map(torch.equal, (torch.cat(parts, 1), *states), want)):
            return Verdict(False, f"{arm.name}: one token a call gives other bits")
    return Verdict(True, f"{len(arms)} slice widths and {ROWS} single tokens: equal bits")


def ownership(device: str) -> Verdict:
    """36: every byte that a dispatch writes is written once; a second writer would be a race."""
    if device != "cpu":
        return Verdict(None, f"{ONLY_EMULATED} sees every write")
    layer = Layer(SHAPES["small"], device, 0)
    hidden = layer.hidden(ROWS)
    for arm in shaders(device):
        _, launches = emulation.counted(
            lambda a=arm: a.to_new_states(layer, hidden), schedule="random", seed=1
        )
        for launch in launches:
            for name, b in (launch.result.buffers or {}).items():
                if b.written != b.written_distinct:
                    return Verdict(False, f"{arm.name}: {launch.family}: {name} is written twice")
    return Verdict(True, "one write for every byte of every dispatch, no race under a random order")


def coordination(device: str) -> Verdict:
    """37: what a hand-off costs in polls and fences; microseconds need a device."""
    if device != "cpu":
        return Verdict(None, f"{ONLY_EMULATED} counts polls and fences")
    found = handoff(schedule="fifo")
    return Verdict(
        found.right, f"{found.spins} polls and {found.fences} fences for {PARTS} parts, 3 consumers"
    )


def progress(device: str) -> Verdict:
    """38: with fewer resident groups than the hand-off needs it ends, by its own error word."""
    if device != "cpu":
        return Verdict(None, f"{ONLY_EMULATED} chooses how many groups are resident")
    starved = handoff(residency=1, order="reversed")
    unfair = handoff(schedule="unfair")
    enough = handoff(residency=4, order="reversed")
    kept = (
        starved.error == TIMED_OUT
        and starved.untouched
        and enough.right
        and (unfair.right or unfair.error == TIMED_OUT)
    )
    return Verdict(
        kept, f"1 resident of 4: error word {starved.error}, nothing written; all resident: right"
    )


def timeout(device: str) -> Verdict:
    """39: an injected stall ends in bounded polls; the next call works."""
    launcher = launcher_of(device)
    found = handoff(stall=True, launcher=launcher)
    again = handoff(launcher=launcher)
    kept = found.error == TIMED_OUT and found.untouched and again.right
    polls = "bounded" if found.spins is None else str(found.spins)
    return Verdict(kept, f"after {polls} polls; the next call is right: {again.right}")


def cancellation(device: str) -> Verdict:
    """40: a cancelled run writes nothing, and a later one works."""
    launcher = launcher_of(device)
    found = handoff(cancel=True, launcher=launcher)
    kept = found.error == CANCELLED and found.untouched and handoff(launcher=launcher).right
    return Verdict(kept, f"error word {found.error}, outputs untouched: {found.untouched}")


def lifetime(device: str) -> Verdict:
    """41: tensors that are deleted right after the call, and whose memory is taken by others."""
    layer = Layer(SHAPES["small"], device, 0)
    for arm in shaders(device):
        want = facts.tensor_sha256(arm.to_new_states(layer, layer.hidden(ROWS)))
        hidden = layer.hidden(ROWS)
        results = arm.to_new_states(layer, hidden)
        del hidden
        gc.collect()
        pressure = [layer.in_proj.new_full((1 << 16,), 7.0) for _ in range(32)]
        if facts.tensor_sha256(results) != want:
            return Verdict(False, f"{arm.name}: other results after {len(pressure)} allocations")
    return Verdict(True, "results unchanged under allocator pressure")


def committed_state(device: str) -> Verdict:
    """42: the state after n of the rows is what the next call sees, for every n; a refused call
    leaves it. Deferred materialisation is deferred, because there is no state.commit yet."""
    layer = Layer(SHAPES["small"], device, 0)
    hidden = layer.hidden(ROWS)
    for arm in shaders(device):
        want = arm(layer, hidden, layer.states())
        for n in range(ROWS + 1):
            states = layer.states()
            parts = [arm(layer, part, states)[0] for part in (hidden[:, :n], hidden[:, n:])]
            if not all(map(torch.equal, (torch.cat(parts, 1), *states), want)):
                return Verdict(False, f"{arm.name}: split at {n} gives other bits")
        states = layer.states()
        try:
            arm(layer, hidden[..., :-32], states)
        except (ValueError, RuntimeError):
            if not all(map(torch.equal, states, layer.states())):
                return Verdict(False, f"{arm.name}: a refused call moved the state")
        else:
            return Verdict(False, f"{arm.name}: a wrong hidden size is not refused")
    return Verdict(True, f"every split of {ROWS} rows, and a refused call; deferral is deferred")


CASES: dict[str, tuple[int, Callable[[str], Verdict]]] = {
    "tasks": (32, tasks),
    "visibility": (33, visibility),
    "norm-dependency": (34, norm_dependency),
    "recurrence": (35, recurrence),
    "ownership": (36, ownership),
    "coordination": (37, coordination),
    "progress": (38, progress),
    "timeout": (39, timeout),
    "cancellation": (40, cancellation),
    "lifetime": (41, lifetime),
    "committed-state": (42, committed_state),
}


def judged(case: Callable[[str], Verdict], device: str) -> Verdict:
    """The case's verdict: broken where the device hangs, deferred where a probe cannot run."""
    try:
        return case(device)
    except DeadlineExceeded as error:
        return Verdict(False, str(error))
    except BenchmarkError as error:
        return Verdict(None, f"deferred here, because a probe does not run: {error}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    found, failed = {}, []
    for name in options.case:
        row, case = CASES[name]
        with torch.no_grad():
            verdict = judged(case, options.device)
        word = {True: "kept", False: "BROKEN", None: "deferred"}[verdict.kept]
        print(f"{row}  {name:<16} {word:<9} {verdict.detail}")
        found[name] = {"row": row, "kept": verdict.kept, "detail": verdict.detail}
        failed += [f"{name}: {verdict.detail}"] if verdict.kept is False else []
    yield receipts.new(
        options,
        receipts.of_shaders(options.device),
        scope="layer",
        tier=1,
        rows=ROWS,
        dtype="bfloat16",
        results={"cases": found, "failed": failed},
        caveats=["hand-offs inside a dispatch are a probe kernel"],
    )
