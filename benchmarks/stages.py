"""What fusion saved and what it added, stage by stage: buffers and tasks by the stage they serve.

A persistent dispatch holds all stages of a layer, so that its traffic is told apart by buffer: what
a stage hands to the next is written by the one and read by the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from torch_mps_fusion import plan

IN, HEAD, CONV, OUT, _ = plan.TASK_STAGES  # bytes from the convolution to the gated norm: HEAD
COMMIT, COORDINATION, ARGUMENTS = "commit", "coordination", "arguments"
STAGES = (*plan.TASK_STAGES, COMMIT, COORDINATION, ARGUMENTS)
NOUGHT = {"requested": 0, "distinct": 0, "written": 0}

_PERSISTENT = {
    IN: ("W_in", "X", "input_norm_weight"),
    OUT: ("W_out", "residual", "output"),
    CONV: ("conv_out",),
    COORDINATION: ("records", "edges", "counters", "control"),
    ARGUMENTS: ("args", "gdn", "in_args", "out_args"),
}


@dataclass(frozen=True)
class Line:
    """One buffer of one dispatch, in bytes. `requested`: of every load; `distinct`: each once."""

    family: str
    buffer: str
    requested: int
    distinct: int
    written: int


def stage_of(line: Line, first: bool, writes: bool) -> str:
    """The stage that the line's reads, or writes, belong to. `first`: of the first dispatch."""
    if line.family == "persistent":
        if line.buffer in ("Y", "G"):
            return {("Y", True): IN, ("G", False): OUT}.get((line.buffer, writes), HEAD)
        return next((s for s, names in _PERSISTENT.items() if line.buffer in names), HEAD)
    if line.buffer in _PERSISTENT[ARGUMENTS]:
        return ARGUMENTS
    if line.family == "projection":
        if line.buffer in ("gdn_y", "conv_in", "conv_out"):
            return CONV
        return IN if first else OUT
    return COMMIT if line.family == COMMIT else HEAD


def apart(lines: Sequence[Line]) -> list[Line]:
    """Bindings of one memory counted once. metal_host counts what both saw for each of them: the
    table of tasks is bound as records and as edges, and the input is a residual too, of which the
    output projection reads every byte once."""
    found = {(x.family, x.buffer): x for x in lines}
    fused = ("persistent", "X") in found and found["persistent", "X"].requested > 0
    out = []
    for x in lines:
        if (x.family, x.buffer) == ("persistent", "edges"):
            continue
        if fused and (x.family, x.buffer) == ("persistent", "X"):
            x = Line(x.family, x.buffer, x.requested - x.distinct, x.distinct, x.written)
        if fused and (x.family, x.buffer) == ("persistent", "residual"):
            x = Line(x.family, x.buffer, x.distinct, x.distinct, x.written)
        out.append(x)
    return out


def by_stage(lines: Sequence[Line]) -> dict[str, dict[str, int]]:
    """Bytes of each stage."""
    found = {stage: dict(NOUGHT) for stage in STAGES}
    projections = 0
    for i, x in enumerate(lines):
        projections += x.family == "projection" and (i == 0 or lines[i - 1].family != "projection")
        reads = found[stage_of(x, projections <= 1, False)]
        reads["requested"] += x.requested
        reads["distinct"] += x.distinct
        found[stage_of(x, projections <= 1, True)]["written"] += x.written
    return found


@dataclass(frozen=True)
class Work:
    """Tasks of a stage in a program, the counters that they wait for and those that they signal."""

    tasks: int
    waits: int
    signals: int


def tasks_by_stage(program: plan.Program) -> dict[str, dict[str, int]]:
    """Of a persistent program; empty without one."""
    found = {}
    for tasks in (d.tasks for d in program.dispatches if d.tasks is not None):
        for stage in plan.TASK_STAGES:
            own = [r for r in tasks.records if r.stage == stage]
            waits = sum(count > 0 for r in own for _, count in tasks.waits(r))
            if own:
                found[stage] = asdict(Work(len(own), waits, sum(r.n_signals for r in own)))
    return found


def difference(
    a: Mapping[str, Mapping[str, int]], b: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, int]]:
    """a - b, by stage and field; what is the same is left out."""
    found = {s: {n: a[s][n] - b[s][n] for n in NOUGHT} for s in STAGES}
    return {s: own for s, own in found.items() if any(own.values())}
