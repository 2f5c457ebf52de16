"""The demo: one layer from safetensors, every variant that runs here, checked and timed."""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from . import device as devices
from . import reference
from .explain import SHADER_VARIANTS, Call, plan_call
from .models import KNOWN_SHAPES, GatedDeltaNet, GDNConfig, write_model
from .models.choice import for_rows, format_for
from .ops import VARIANTS, supports
from .state import GDNState
from .tolerances import error, tolerance

RESULTS = ("output", "conv_state", "recurrent_state")
WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class Row:
    """One variant at one number of tokens. `milliseconds` is empty where metal_host ran it: the
    time of an emulation says nothing. `plan` is that of the shader variants.
    """

    tokens: int
    variant: str
    errors: dict[str, float]
    milliseconds: list[float]
    plan: Call | None

    def failures(self, dtype: torch.dtype) -> list[str]:
        return [name for name, e in self.errors.items() if e > tolerance(name, dtype).rms]


def run_demo(args: argparse.Namespace) -> int:
    """Runs the demo; returns 1 if a variant missed its tolerance."""
    if args.rounds < 1:
        raise ValueError(f"rounds: got {args.rounds}; accepted: at least 1")
    with tempfile.TemporaryDirectory() as scratch:
        layer = load(args, Path(scratch))
    variants, refused = runnable_variants(layer)
    print(f"layer: {layer.extra_repr()}")
    for variant, reason in refused.items():
        print(f"not run: {variant}: {reason}")
    shader_layer = copy.deepcopy(layer)
    rows = [
        row
        for tokens in args.tokens
        for row in measure(layer, shader_layer, tokens, variants, args.rounds)
    ]
    print_table(rows, layer.dtype)
    return 1 if any(row.failures(layer.dtype) for row in rows) else 0


def progress(message: str) -> None:
    print(f"... {message}", file=sys.stderr, flush=True)


def load(args: argparse.Namespace, scratch: Path) -> GatedDeltaNet:
    directory = args.model
    if directory is None:
        directory = scratch / "model"
        progress(f"writing a model directory of shape {args.shape} with random weights")
        write_model(directory, KNOWN_SHAPES[args.shape])
    index = args.layer
    if index is None:
        gdn_layers = GDNConfig.from_json(directory).gdn_layers
        if not gdn_layers:
            raise ValueError(f"model: {directory} has no GDN layer")
        index = gdn_layers[0]
    progress(f"loading layer {index} of {directory if args.model else args.shape}")
    dtype = None if args.dtype is None else getattr(torch, args.dtype)
    return GatedDeltaNet.from_safetensors(
        directory, index, device=args.device, dtype=dtype, with_input_norm=True
    )


def runnable_variants(layer: GatedDeltaNet) -> tuple[list[str], dict[str, str]]:
    """The variants that run on the layer's device, and why the others do not."""
    runs, refused = [], {}
    for variant in VARIANTS[1:]:
        answer = supports(
            variant,
            device=layer.device,
            dtype=layer.dtype,
            num_k_heads=layer.config.num_k_heads,
            num_v_heads=layer.config.num_v_heads,
            head_k_dim=layer.config.head_k_dim,
            head_v_dim=layer.config.head_v_dim,
            conv_width=layer.config.conv_kernel_size,
            weight_format=format_for(variant, layer.device),
            hidden_size=layer.config.hidden_size,
        )
        if answer:
            runs.append(variant)
        else:
            refused[variant] = answer.reason
    return runs, refused


def measure(
    layer: GatedDeltaNet,
    shader_layer: GatedDeltaNet,
    tokens: int,
    variants: list[str],
    rounds: int,
) -> list[Row]:
    """Checks and times ``tokens`` tokens of one sequence that already has a state."""
    progress(f"T = {tokens}: float64 reference")
    generator = torch.Generator().manual_seed(tokens)
    size = (1, WARM_UP_TOKENS + tokens, layer.config.hidden_size)
    hidden = torch.randn(size, generator=generator).to(layer.device, layer.dtype)
    before = layer.new_state(1)
    layer(hidden[:, :WARM_UP_TOKENS], before, variant="stock")
    x = hidden[:, WARM_UP_TOKENS:]
    expected = reference_results(layer, x, before)

    progress(f"T = {tokens}: running {', '.join(variants)}")
    # A layer of its own for packed weights: one layer would pack and unpack from call to call.
    layers = {v: shader_layer if v in SHADER_VARIANTS else layer for v in variants}
    errors = {}
    for variant in variants:
        state = before.clone()
        output = layers[variant](x, state, variant=variant)
        actual = (output, state.conv, state.recurrent)
        errors[variant] = {
            name: error(a.cpu(), e) for name, a, e in zip(RESULTS, actual, expected, strict=True)
        }
    emulated = SHADER_VARIANTS if layer.device.type == "cpu" else ()
    timed = [v for v in variants if v not in emulated]
    states = {v: before.clone() for v in timed}
    calls = {v: partial(layers[v], x, states[v], variant=v) for v in timed}
    times = interleaved(calls, rounds, layer.device)
    return [
        Row(tokens, v, errors[v], times.get(v, []), plan_of(layer, tokens, v)) for v in variants
    ]


def plan_of(layer: GatedDeltaNet, tokens: int, variant: str) -> Call | None:
    if variant not in SHADER_VARIANTS:
        return None
    spec = devices.current(layer.device)
    norm = layer.input_norm_weight is not None
    return plan_call(
        layer.config,
        layer.dtype,
        variant=for_rows(variant, tokens, layer.device.type),
        device=spec.name,
        tokens=tokens,
        input_norm=norm,
        in_place=True,
    )


def reference_results(layer: GatedDeltaNet, x: Tensor, state: GDNState) -> tuple[Tensor, ...]:
    """Float64 with the checkpoint's roundings, on the CPU."""
    config, w = layer.config, {n: p.cpu() for n, p in layer.named_parameters()}
    projections = [w[f"in_proj_{part}.weight"] for part in ("qkv", "z", "b", "a")]
    return reference.gdn_layer(
        x.cpu(),
        projections,
        w["conv1d.weight"].squeeze(1),
        w["A_log"],
        w["dt_bias"],
        w["norm.weight"],
        [w["out_proj.weight"]],
        w["input_norm_weight"],
        state.conv.cpu(),
        state.recurrent.cpu(),
        num_k_heads=config.num_k_heads,
        num_v_heads=config.num_v_heads,
        head_k_dim=config.head_k_dim,
        head_v_dim=config.head_v_dim,
        head_map="block",
        eps=config.rms_norm_eps,
        rounding=layer.dtype,
    )


def interleaved(
    calls: Mapping[str, Callable[[], Tensor]], rounds: int, device: torch.device
) -> dict[str, list[float]]:
    """Milliseconds of each call, host clock, all calls in turn in each round."""
    synchronise = {"mps": torch.mps.synchronize, "cuda": torch.cuda.synchronize}.get(
        device.type, lambda: None
    )
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            synchronise()
            start = time.perf_counter()
            call()
            synchronise()
            times[name].append(1e3 * (time.perf_counter() - start))
    return times


def plan_cells(plan: Call | None) -> tuple[str, str, str]:
    if plan is None:
        return "-", "-", "-"
    return (
        str(len(plan.dispatches)),
        f"{plan.bytes / 1e6:.2f}",
        f"{plan.bytes / plan.minimum_bytes:.3f}",
    )


def time_cells(milliseconds: list[float]) -> tuple[str, str]:
    if not milliseconds:
        return "emulated", "emulated"
    return f"{min(milliseconds):.3f}", f"{statistics.median(milliseconds):.3f}"


def print_table(rows: list[Row], dtype: torch.dtype) -> None:
    header = (
        "T", "variant", "output", "conv state", "recurrent", "within", "dispatches", "MB",
        "x least MB", "min ms", "median ms",
    )  # fmt: skip
    lines: list[tuple[str, ...]] = [header]
    for row in rows:
        failures = row.failures(dtype)
        lines.append(
            (
                str(row.tokens),
                row.variant,
                *(f"{row.errors[name]:.1e}" for name in RESULTS),
                "no: " + ", ".join(failures) if failures else "yes",
                *plan_cells(row.plan),
                *time_cells(row.milliseconds),
            )
        )
    limits = [f"{tolerance(name, dtype).rms:.0e}" for name in RESULTS]
    lines.append(("", "accepted", *limits, *[""] * 6))
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    print()
    for line in lines:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    print(
        "\nErrors: RMS of the difference to float64 with the checkpoint's roundings, relative.\n"
        "Times: host clock, one sequence with a state, variants in turn in every round, "
        f"{torch.get_num_threads()} threads.\n"
        "emulated: the Metal kernels ran in metal_host on this machine; its time means nothing. "
        "MB: read and\nwritten, each byte once (weights once a pass of eight rows), beside the "
        "least that any implementation moves."
    )
