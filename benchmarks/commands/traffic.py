"""Bytes of a layer as metal_host counts them, by dispatch and buffer.

A byte that is loaded twice is requested twice and counts once as distinct: what lies between are
repeats, which a cache may serve. All shader variants run one call on the CPU, states in place;
nothing is timed. Each is then set against `packed`, stage by stage: what fusion saved and added.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from torch_mps_fusion import device as devices
from torch_mps_fusion import host_kernels
from torch_mps_fusion.explain import aligned, plan_call
from torch_mps_fusion.metal_host import BufferCounters
from torch_mps_fusion.models import KNOWN_SHAPES, GatedDeltaNet, GDNConfig

from .. import receipts
from ..emulation import SUMMED
from ..stages import STAGES, Line, apart, by_stage, difference, tasks_by_stage

DEVICE = "cpu"  # whatever the others run on
VARIANTS = ("packed", "core", "hybrid", "mega")
CONTROL = VARIANTS[0]
# Old and new states share memory: each is counted on its own side.
OLD, NEW = ("state_in", "conv_in", "conv_state"), ("state_out", "conv_out")
SMALL_WEIGHTS = ("weight", "conv_weight", "norm_weight", "input_norm_weight", "A_log", "dt_bias")
ROLES = {
    "packed weights": ("W", "W_in", "W_out"),
    "small weights": SMALL_WEIGHTS,
    "states": OLD + NEW,
    "coordination": ("records", "counters", "control"),
    "arguments": ("args", "gdn", "in_args", "out_args"),
}
COMMIT = "commit"  # of states in place, by a persistent variant
ALL_ROLES = (*ROLES, COMMIT, "activations")
# Three value heads a key head; padded rows in the input projection.
SMALL = replace(
    KNOWN_SHAPES["9b"],
    hidden_size=64,
    num_k_heads=1,
    num_v_heads=3,
    head_k_dim=32,
    head_v_dim=64,
)


def role(line: Line) -> str:
    if line.family == COMMIT and line.buffer not in ROLES["arguments"]:
        return COMMIT
    return next((name for name, own in ROLES.items() if line.buffer in own), ALL_ROLES[-1])


@dataclass(frozen=True)
class Counted:
    """A call: its buffers in the order of the dispatches, what all its threads did, its tasks."""

    lines: list[Line]
    counters: dict[str, int]
    tasks: dict[str, dict[str, int]]


def count(config: GDNConfig, rows: int, variant: str) -> Counted:
    """One call of `rows` tokens, states in place."""
    layer = GatedDeltaNet.from_config(config, dtype=torch.bfloat16, with_input_norm=True)
    x = torch.randn(1, rows, config.hidden_size, generator=torch.Generator().manual_seed(1))
    with host_kernels.running(checked=True, count_only=True) as launches:
        layer(x.bfloat16(), layer.new_state(1), variant=variant)
    lines = [
        line_of(launch.family, name, counters)
        for launch in launches
        for name, counters in (launch.result.buffers or {}).items()
        if counters.read or counters.written
    ]
    did = {n: sum(getattr(x.result.counters, n) for x in launches) for n in SUMMED}
    call = plan_call(config, torch.bfloat16, variant=variant, device="host", tokens=rows)
    return Counted(apart(lines), did, tasks_by_stage(call.programs[0]))


def line_of(family: str, buffer: str, c: BufferCounters) -> Line:
    read, written = int(buffer not in NEW), int(buffer not in OLD)
    return Line(family, buffer, read * c.read, read * c.read_distinct, written * c.written)


def megabytes(*counts: int) -> tuple[str, ...]:
    return tuple(f"{n / 1e6:.4f}" for n in counts)


def sums(lines: list[Line], name: str) -> dict[str, int]:
    """Bytes of a role: requested, distinct, written."""
    own = [x for x in lines if role(x) == name]
    return {k: sum(getattr(x, k) for x in own) for k in ("requested", "distinct", "written")}


def report(config: GDNConfig, rows: int, variant: str, lines: list[Line]) -> list[str]:
    """The table of one variant, sums by role, and what is more than the least."""
    table = [("dispatch", "buffer", "read MB", "distinct MB", "written MB")]
    table += [
        (x.family, x.buffer, *megabytes(x.requested, x.distinct, x.written))
        for x in lines
        if role(x) != "arguments"
    ]
    for name in ALL_ROLES:
        table.append(("all", name, *megabytes(*sums(lines, name).values())))
    call = plan_call(
        config, torch.bfloat16, variant=variant, device="host", tokens=rows, in_place=True
    )
    gates = 2 * config.num_v_heads
    outputs = config.conv_dim + config.num_v_heads * config.head_v_dim + gates
    padding = 2 * config.hidden_size * (-outputs % 16)
    windows = sum(x.requested - x.distinct for x in lines if x.buffer in ("conv_in", "conv_state"))
    moved = sum(x.distinct + x.written for x in lines if role(x) != "arguments")
    return [
        f"{variant}, {rows} rows:",
        *aligned(table),
        "packed weights: padded rows {} MB; states: conv windows read again {} MB; sums over parts "
        "of K never leave a threadgroup".format(*megabytes(padding, windows)),
        "distinct read and written: {} MB; planned {}; least {}".format(
            *megabytes(moved, call.bytes, call.minimum_bytes)
        ),
        "",
    ]


def against(counted: Counted, control: Counted, variant: str) -> dict[str, Any]:
    """What differs from the control: bytes by stage, what threads did, and tasks by stage. Weights
    and states must be the same."""
    own, other = once(counted.lines), once(control.lines)
    return {
        "bytes_by_stage": difference(by_stage(counted.lines), by_stage(control.lines)),
        "counters": {n: counted.counters[n] - control.counters[n] for n in SUMMED},
        "tasks_by_stage": counted.tasks,
        "failed": [
            f"{variant}: bytes of {n}: {own[n]}, of {CONTROL} {other[n]}"
            for n in own
            if own[n] != other[n]
        ],
    }


def once(lines: list[Line]) -> dict[str, int]:
    """Bytes of packed weights and of states, each once a call: old inputs of the convolution may be
    read by two dispatches."""
    states: dict[str, int] = {}
    for x in lines:
        if role(x) == "states":
            name = "conv_in" if x.buffer == "conv_state" else x.buffer
            states[name] = max(states.get(name, 0), x.distinct + x.written)
    weights = sums(lines, "packed weights")["distinct"]
    return {"packed weights": weights, "states": sum(states.values())}


def differences(variant: str, found: dict[str, Any]) -> list[str]:
    """As text; a minus is what fusion saved."""
    stages, tasks = found["bytes_by_stage"], found["tasks_by_stage"]
    table = [("stage", "requested", "distinct", "written", "tasks", "waits", "signals")]
    for stage in STAGES:
        if stage in stages or stage in tasks:
            nought = dict.fromkeys(("requested", "distinct", "written"), 0)
            bytes_ = (f"{n:+,}" for n in stages.get(stage, nought).values())
            work = tasks.get(stage, {"tasks": "", "waits": "", "signals": ""}).values()
            table.append((stage, *bytes_, *map(str, work)))
    did = ", ".join(f"{n.replace('_', ' ')} {v:+,}" for n, v in found["counters"].items() if v)
    return [
        f"{variant} against {CONTROL}, bytes:",
        *aligned(table),
        f"threads: {did or 'none'}",
        "",
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", choices=sorted(KNOWN_SHAPES), default="0.8b")
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[1, 8], help="tokens of the sequence"
    )


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    if min(options.rows) < 1:
        raise ValueError(f"rows: got {options.rows}; accepted: at least 1")
    for rows in options.rows:
        yield cell(options, rows)


def cell(options: argparse.Namespace, rows: int) -> receipts.Receipt:
    config = SMALL if options.smoke else KNOWN_SHAPES[options.shape]
    counted = {v: count(config, rows, v) for v in variants_for(rows)}
    for variant, c in counted.items():
        print("\n".join(report(config, rows, variant, c.lines)))
    fusion = {v: against(c, counted[CONTROL], v) for v, c in counted.items() if v != CONTROL}
    for variant, found in fusion.items():
        print("\n".join(differences(variant, found)))
    return receipts.new(
        options,
        "cpu-emulation",
        scope="layer",
        tier=1,
        rows=rows,
        sequences=1,
        dtype="bfloat16",
        results={
            "part": f"{'small' if options.smoke else options.shape}-{rows}",
            "bytes_by_role": {
                v: {n: sums(c.lines, n) for n in ALL_ROLES} for v, c in counted.items()
            },
            "counters": {v: c.counters for v, c in counted.items()},
            "against": CONTROL,
            "fusion": fusion,
            "failed": [line for found in fusion.values() for line in found["failed"]],
        },
        caveats=[
            "spins are those of the emulator's own order of threads, without a delay of memory",
            "`commit` copies states to tensors updated in place; with slots there is none",
        ],
    )


def variants_for(rows: int) -> list[str]:
    """Persistent variants take as many rows as the device's own projections."""
    most = devices.find("host").row_threshold
    return [v for v in VARIANTS if rows <= most or v in VARIANTS[:2]]
