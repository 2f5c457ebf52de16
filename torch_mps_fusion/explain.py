"""Explains a plan: dispatches, bytes, estimated times on a named chip, and what `auto` would run.

Every time printed here is arithmetic on published figures; nothing was measured by this project.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import device as devices
from .models.choice import PERSISTENT, SHADER_VARIANTS
from .models.config import KNOWN_SHAPES, UNVERIFIED_SHAPES, GDNConfig
from .plan import Dispatch, Program, chunks, meta_layer, plan_layer
from .timeline import busy_line, draw, spans, stage_table, text_picture

# Cost of a dispatch boundary in microseconds, lowest and highest of the published measurements on
# M3 Pro and M5 Pro (Lithos); other chips are unverified.
BOUNDARY_US = (1.4, 2.7)


def plan_config(
    config: GDNConfig,
    dtype: torch.dtype,
    *,
    variant: str,
    device: str,
    batch: int = 1,
    tokens: int = 1,
    input_norm: bool = True,
    geometry: str = "",
    in_place: bool = False,
) -> Program:
    """The program of a call as one chunk: a layer of this config, states, no mask."""
    spec = devices.find(device)
    arguments, keywords = meta_layer(
        batch=batch,
        tokens=tokens,
        hidden_size=config.hidden_size,
        num_k_heads=config.num_k_heads,
        num_v_heads=config.num_v_heads,
        head_k_dim=config.head_k_dim,
        head_v_dim=config.head_v_dim,
        conv_width=config.conv_kernel_size,
        dtype=dtype,
        weight_format=spec.weight_format,
        input_norm=input_norm,
    )
    return plan_layer(
        *arguments,
        **keywords,
        variant=variant,
        device=device,
        geometry=geometry,
        in_place=in_place,
    )


@dataclass
class Call:
    """What a call runs: one program for each of its chunks. Bytes are read and written, each once
    (weights once a pass); `minimum_bytes` is what any implementation moves."""

    programs: list[Program]
    minimum_bytes: int

    @property
    def dispatches(self) -> list[Dispatch]:
        return [d for p in self.programs for d in p.dispatches]

    @property
    def bytes(self) -> int:
        return sum(p.bytes for p in self.programs)


def plan_call(
    config: GDNConfig,
    dtype: torch.dtype,
    *,
    device: str,
    batch: int = 1,
    tokens: int = 1,
    **rest: Any,
) -> Call:
    """All chunks of a call; arguments as those of `plan_config`."""
    whole = plan_config(config, dtype, device=device, batch=batch, tokens=tokens, **rest)
    sizes = chunks(batch, tokens, device)
    made = {
        (b, t): plan_config(config, dtype, device=device, batch=b, tokens=t, **rest)
        for b, t in set(sizes)
    }
    return Call([made[size] for size in sizes], whole.minimum_bytes)


def choose(
    device_type: str, device: str, config: GDNConfig, dtype: torch.dtype, rows: int
) -> tuple[str, str]:
    """What `auto` runs on a device of that type and name, and why (csrc/auto_choice.cpp)."""
    return torch.ops.mps_fusion._choice(
        device_type,
        device,
        dtype,
        head_k_dim=config.head_k_dim,
        head_v_dim=config.head_v_dim,
        conv_width=config.conv_kernel_size,
        rows=rows,
        hidden_size=config.hidden_size,
    )


def run_explain(args: argparse.Namespace) -> int:
    """Prints the plan of `args` (see `python -m torch_mps_fusion explain --help`)."""
    config = KNOWN_SHAPES[args.shape]
    spec = devices.find(args.device)
    dtype = getattr(torch, args.dtype)
    given = {"device": args.device, "batch": args.batch, "tokens": args.rows}
    call = plan_call(config, dtype, variant=args.variant, geometry=args.geometry, **given)
    note = " (shape unverified)" if args.shape in UNVERIFIED_SHAPES else ""
    print(
        f"{args.variant}, {args.shape}{note}, {args.dtype}, {args.batch} x {args.rows} rows, on "
        f"{args.device}: {spec.cores} cores, {spec.bandwidth:g} GB/s, Metal {spec.msl / 100:g}\n"
    )
    if args.program is not None:
        print("\n".join(program_lines(call.programs[0], args)))
        return 0
    if len(call.programs) > 1:
        print(f"{len(call.programs)} chunks of at most {spec.chunk_rows} rows, the first is shown")
    print("\n".join(table(call.programs[0], spec)))
    print("\n".join(["", *totals(call, spec)]))
    others = [v for v in SHADER_VARIANTS if v != args.variant]
    if args.batch * args.rows > spec.row_threshold:
        others = [v for v in others if v not in PERSISTENT]
        note = "hybrid, mega: up to {} rows; modules run core above that"
        print("\n" + note.format(spec.row_threshold))
    print("\n".join(["", *comparison(config, dtype, [args.variant, *others], given, spec)]))
    kind = "cuda" if spec.lanes == "nvidia" else "cpu" if spec.name == "host" else "mps"
    chosen, reason = choose(kind, args.device, config, dtype, args.batch * args.rows)
    print(f"auto on {kind}: {chosen}: {reason}")
    print(
        "\nmemory: bytes over the nominal bandwidth. estimate: the larger of that and the issue "
        "time of\nstatically counted instructions (csrc/plan/cost.h). Derived, not measured."
    )
    return 0


def program_lines(program: Program, args: argparse.Namespace) -> list[str]:
    """The tasks of the persistent dispatch over its workers, in text or in the file asked for."""
    tasks = next((d.tasks for d in program.dispatches if d.tasks), None)
    if tasks is None:
        raise ValueError(f"--program: got variant {args.variant}; accepted: hybrid, mega")
    found = spans(tasks)
    lines = [*aligned(stage_table(tasks, found)), "", busy_line(tasks, found)]
    if args.program != Path():
        where = f"{args.variant}, {args.shape}, {args.batch} x {args.rows} rows, {args.dtype}"
        title = f"{where}\nestimate from nominal figures of {args.device}; nothing was measured"
        draw(tasks, found, title, args.program)
        return [*lines, f"{args.program}: written"]
    return [
        *lines,
        "",
        *text_picture(tasks, found),
        "",
        "Letters: the stage that a worker is in; a dot waits. Times: each worker has an equal "
        "share of the\nnominal bandwidth and of its core (csrc/plan/task_times.h). Derived, not "
        "measured.",
    ]


def megabytes(n: int) -> str:
    return f"{n / 1e6:.3f}"


def aligned(lines: list[tuple[str, ...]]) -> list[str]:
    """Columns under each other, the first to the left."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def table(program: Program, spec: devices.DeviceSpec) -> list[str]:
    """One line a dispatch; blocks of one stage that follow each other are counted, not listed."""
    header = (
        "stage", "grid", "threads", "weights MB", "state MB", "other MB", "memory us",
        "estimate us", "kernel",
    )  # fmt: skip
    lines: list[tuple[str, ...]] = [header]
    seen: dict[str, int] = {}
    for d in program.dispatches:
        seen[d.stage] = seen.get(d.stage, 0) + 1
        if seen[d.stage] > 1:
            continue
        roles = program.bytes_by_role(d)
        other = d.bytes - roles["weight"] - roles["state"]
        lines.append(
            (
                d.stage,
                "aten" if d.product else " x ".join(map(str, d.grid)),
                "" if d.product else str(d.threads),
                megabytes(roles["weight"]),
                megabytes(roles["state"]),
                megabytes(other),
                f"{d.bytes / spec.bandwidth / 1e3:.2f}",
                f"{d.estimate_us:.2f}",
                "matrix product" if d.product else d.kernel,
            )
        )
    out = aligned(lines)
    again = [(k, n) for k, n in seen.items() if n > 1]
    if again:
        stages = ", ".join(f"{stage} x {n}" for stage, n in again)
        out.append(f"blocks of tokens or sequences, the first is shown: {stages}")
    return out


def totals(call: Call, spec: devices.DeviceSpec) -> list[str]:
    """Bytes against the least that any implementation moves."""
    roles: dict[str, int] = {}
    for program in call.programs:
        for d in program.dispatches:
            for role, n in program.bytes_by_role(d).items():
                roles[role] = roles.get(role, 0) + n
    rate = spec.bandwidth * 1e3
    least = call.minimum_bytes
    parts = ", ".join(f"{role} {megabytes(n)}" for role, n in roles.items() if n)
    return [
        f"{len(call.dispatches)} dispatches, {megabytes(call.bytes)} MB ({parts})",
        f"least possible: {megabytes(least)} MB, {least / rate:.1f} us; this plan: "
        f"{call.bytes / least:.3f} x, {call.bytes / rate:.1f} us",
    ]


def comparison(
    config: GDNConfig,
    dtype: torch.dtype,
    variants: list[str],
    given: dict,
    spec: devices.DeviceSpec,
) -> list[str]:
    """Each variant's bytes and boundaries, as a range of predicted times."""
    lines: list[tuple[str, ...]] = [("variant", "dispatches", "MB", "predicted us")]
    for variant in variants:
        p = plan_call(config, dtype, variant=variant, **given)
        time = sum(max(d.estimate_us, d.bytes / spec.bandwidth / 1e3) for d in p.dispatches)
        low, high = (time + len(p.dispatches) * cost for cost in BOUNDARY_US)
        lines.append(
            (variant, str(len(p.dispatches)), megabytes(p.bytes), f"{low:.1f} to {high:.1f}")
        )
    return [
        *aligned(lines),
        f"predicted: estimates and {BOUNDARY_US[0]:g} to {BOUNDARY_US[1]:g} us a dispatch boundary "
        "(published for M3 Pro, M5 Pro)",
    ]
