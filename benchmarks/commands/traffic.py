"""Bytes of a layer as metal_host counts them, by dispatch and buffer.

A byte that is loaded twice is requested twice and counts once as distinct: what lies between are
repeats, which a cache may serve. Both shader variants run one call on the CPU, states in place;
nothing is timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from torch_mps_fusion import host_kernels
from torch_mps_fusion.explain import aligned, plan_call
from torch_mps_fusion.metal_host import BufferCounters
from torch_mps_fusion.models import KNOWN_SHAPES, GatedDeltaNet, GDNConfig

from .. import receipts

DEVICE = "cpu"  # whatever the others run on
VARIANTS = ("packed", "core")
# Old and new states share memory: each is counted on its own side.
OLD, NEW = ("state_in", "conv_in", "conv_state"), ("state_out", "conv_out")
ROLES = {
    "packed weights": ("W",),
    "small weights": ("weight", "conv_weight", "norm_weight", "A_log", "dt_bias"),
    "states": OLD + NEW,
    "arguments": ("args", "gdn"),
}
ALL_ROLES = (*ROLES, "activations")
# Three value heads a key head; padded rows in the input projection.
SMALL = replace(
    KNOWN_SHAPES["9b"],
    hidden_size=64,
    num_k_heads=1,
    num_v_heads=3,
    head_k_dim=32,
    head_v_dim=64,
)


@dataclass(frozen=True)
class Line:
    """One buffer of one dispatch, in bytes."""

    family: str
    buffer: str
    requested: int
    distinct: int
    written: int

    @property
    def role(self) -> str:
        return next((role for role, names in ROLES.items() if self.buffer in names), ALL_ROLES[-1])


def count(config: GDNConfig, rows: int, variant: str) -> list[Line]:
    """Every buffer that a call of `rows` tokens touches, in the order of the dispatches."""
    layer = GatedDeltaNet.from_config(config, dtype=torch.bfloat16, with_input_norm=True)
    x = torch.randn(1, rows, config.hidden_size, generator=torch.Generator().manual_seed(1))
    with host_kernels.running(checked=True, count_only=True) as launches:
        layer(x.bfloat16(), layer.new_state(1), variant=variant)
    return [
        line_of(launch.family, name, counters)
        for launch in launches
        for name, counters in (launch.result.buffers or {}).items()
        if counters.read or counters.written
    ]


def line_of(family: str, buffer: str, c: BufferCounters) -> Line:
    read, written = int(buffer not in NEW), int(buffer not in OLD)
    return Line(family, buffer, read * c.read, read * c.read_distinct, written * c.written)


def megabytes(*counts: int) -> tuple[str, ...]:
    return tuple(f"{n / 1e6:.4f}" for n in counts)


def sums(lines: list[Line], role: str) -> dict[str, int]:
    """Bytes of a role: requested, distinct, written."""
    own = [x for x in lines if x.role == role]
    return {k: sum(getattr(x, k) for x in own) for k in ("requested", "distinct", "written")}


def report(config: GDNConfig, rows: int, variant: str, lines: list[Line]) -> list[str]:
    """The table of one variant, sums by role, and what is more than the least."""
    table = [("dispatch", "buffer", "read MB", "distinct MB", "written MB")]
    table += [
        (x.family, x.buffer, *megabytes(x.requested, x.distinct, x.written))
        for x in lines
        if x.role != "arguments"
    ]
    for role in ALL_ROLES:
        table.append(("all", role, *megabytes(*sums(lines, role).values())))
    call = plan_call(config, torch.bfloat16, variant=variant, device="host", tokens=rows)
    gates = 2 * config.num_v_heads
    outputs = config.conv_dim + config.num_v_heads * config.head_v_dim + gates
    padding = 2 * config.hidden_size * (-outputs % 16)
    windows = sum(x.requested - x.distinct for x in lines if x.buffer in ("conv_in", "conv_state"))
    moved = sum(x.distinct + x.written for x in lines if x.role != "arguments")
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", choices=sorted(KNOWN_SHAPES), default="0.8b")
    parser.add_argument("--rows", type=int, default=1, help="tokens of the sequence")


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    if options.rows < 1:
        raise ValueError(f"rows: got {options.rows}; accepted: at least 1")
    config = SMALL if options.smoke else KNOWN_SHAPES[options.shape]
    roles: dict[str, dict[str, dict[str, int]]] = {}
    for variant in VARIANTS:
        lines = count(config, options.rows, variant)
        print("\n".join(report(config, options.rows, variant, lines)))
        roles[variant] = {role: sums(lines, role) for role in ALL_ROLES}
    yield receipts.new(
        options,
        "cpu-emulation",
        scope="layer",
        tier=1,
        rows=options.rows,
        sequences=1,
        dtype="bfloat16",
        results={"bytes_by_role": roles},
    )
