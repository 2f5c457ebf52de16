"""Explains a plan: dispatches, bytes, estimated times on a named chip, and what `auto` would run.

Every time printed here is arithmetic on published figures; nothing was measured by this project.
"""

from __future__ import annotations

import argparse

import torch

from . import device as devices
from .models.config import KNOWN_SHAPES, UNVERIFIED_SHAPES, GDNConfig
from .plan import Program, meta_layer, plan_layer

PERSISTENT = ("hybrid", "mega")
SHADER_VARIANTS = ("packed", "core", *PERSISTENT)
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
    """The program of a layer of this config, called with states and without a mask."""
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


def choose(device_type: str) -> tuple[str, str]:
    """What `auto` runs on a kind of device, and why."""
    if device_type == "cpu":
        return "native", "CPU tensors: our C++, or stock where it has no kernel"
    if device_type == "cuda":
        return "stock", "CUDA tensors: aten's kernels"
    return "stock", (
        "no chip has a receipt yet (a run of the test suite on it); ask for packed or core by name"
    )


def run_explain(args: argparse.Namespace) -> int:
    """Prints the plan of `args` (see `python -m torch_mps_fusion explain --help`)."""
    config = KNOWN_SHAPES[args.shape]
    spec = devices.find(args.device)
    dtype = getattr(torch, args.dtype)
    given = {"device": args.device, "batch": args.batch, "tokens": args.rows}
    program = plan_config(config, dtype, variant=args.variant, geometry=args.geometry, **given)
    note = " (shape unverified)" if args.shape in UNVERIFIED_SHAPES else ""
    print(
        f"{args.variant}, {args.shape}{note}, {args.dtype}, {args.batch} x {args.rows} rows, on "
        f"{args.device}: {spec.cores} cores, {spec.bandwidth:g} GB/s, Metal {spec.msl / 100:g}\n"
    )
    print("\n".join(table(program, spec)))
    print("\n".join(["", *totals(program, spec)]))
    others = [v for v in SHADER_VARIANTS if v != args.variant]
    if args.batch * args.rows > spec.row_threshold:
        others = [v for v in others if v not in PERSISTENT]
        note = "hybrid, mega: up to {} rows; modules run core above that"
        print("\n" + note.format(spec.row_threshold))
    print("\n".join(["", *comparison(config, dtype, [args.variant, *others], given, spec)]))
    kind = "cuda" if spec.lanes == "nvidia" else "cpu" if spec.name == "host" else "mps"
    chosen, reason = choose(kind)
    print(f"auto on {kind}: {chosen}: {reason}")
    print(
        "\nmemory: bytes over the nominal bandwidth. estimate: the larger of that and the issue "
        "time of\nstatically counted instructions (csrc/plan/cost.h). Derived, not measured."
    )
    return 0


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


def totals(program: Program, spec: devices.DeviceSpec) -> list[str]:
    """Bytes against the least that any implementation moves."""
    roles: dict[str, int] = {}
    for d in program.dispatches:
        for role, n in program.bytes_by_role(d).items():
            roles[role] = roles.get(role, 0) + n
    rate = spec.bandwidth * 1e3
    least = program.minimum_bytes
    parts = ", ".join(f"{role} {megabytes(n)}" for role, n in roles.items() if n)
    return [
        f"{len(program.dispatches)} dispatches, {megabytes(program.bytes)} MB ({parts})",
        f"least possible: {megabytes(least)} MB, {least / rate:.1f} us; this plan: "
        f"{program.bytes / least:.3f} x, {program.bytes / rate:.1f} us",
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
        p = plan_config(config, dtype, variant=variant, **given)
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
