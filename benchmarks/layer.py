"""One mixer layer on an NVIDIA GPU: stock, packed, core and flash-linear-attention.

bfloat16, float32 state; input norm and residual included; consecutive layers depend through the
hidden state. Every layer has its own weights and state, together larger than any cache. Before it
is timed an arm is compared with float64 (ours by the tolerance table, and packed with core bit for
bit); an arm that fails is not timed. Times are of graph replays, and of plain calls ("eager"); the
arms take turns. The copy rate is measured in the same rounds. The receipt holds every sample.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from torch_mps_fusion import reference
from torch_mps_fusion.tolerances import error, tolerance

from . import gpu
from .layer_arms import EPS, SHAPES, Arm, Fla, Layer, Linears, Ours, Results, Shape, fla_is_here

NAMES = ("output", "conv_state", "recurrent_state")
# flash-linear-attention rounds elsewhere than the checkpoint does: it is checked, not matched.
FLA_TOLERANCE = 2e-2
EAGER = {"stock", "core", "fla"}


@dataclass
class Timing:
    """An arm at one shape and number of rows: errors over what is accepted, then the samples."""

    arm: str
    errors: dict[str, float]
    samples_us: list[float] = field(default_factory=list)  # of one layer

    @property
    def verified(self) -> bool:
        return all(e <= 1 for e in self.errors.values())

    @property
    def median(self) -> float:
        return statistics.median(self.samples_us)


@dataclass
class Cell:
    """One shape and number of rows."""

    shape: str
    rows: int
    layers: int
    weight_bytes: int  # of all layers
    payload: int  # bytes that one layer must move
    copy_samples_us: list[float]
    timings: list[Timing]

    @property
    def ideal(self) -> float:
        """Microseconds for the payload at the copy rate of the same rounds."""
        return self.payload / gpu.Copy.rate(self.copy_samples_us) / 1e3


def expected(layer: Layer, hidden: Tensor) -> Results:
    return reference.gdn_layer(
        hidden,
        [layer.in_proj],
        *layer.small(),
        [layer.out_proj],
        layer.input_norm_weight,
        layer.conv_state,
        layer.state,
        **layer.shape.keywords,
        eps=EPS,
        rounding=torch.bfloat16,
    )


def fresh(layer: Layer, arm: Arm) -> tuple[Tensor, Tensor]:
    """A copy of the layer's states in the order that suits the arm."""
    state = layer.state.contiguous() if isinstance(arm, Fla) else layer.state.clone()
    return layer.conv_state.clone(), state


def gate(arms: list[Arm], layer: Layer, hidden: Tensor) -> dict[str, dict[str, float]]:
    """Errors of every arm over what is accepted; our shaders all give the same bits."""
    want = expected(layer, hidden)
    found: dict[str, dict[str, float]] = {}
    results: dict[str, Results] = {}
    for arm in arms:
        if isinstance(arm, Linears):
            found[arm.name] = {}
            continue
        got = results[arm.name] = arm(layer, hidden, fresh(layer, arm))
        found[arm.name] = {
            name: error(g, w)
            / (FLA_TOLERANCE if arm.name == "fla" else tolerance(name, torch.bfloat16).rms)
            for name, g, w in zip(NAMES, got, want, strict=True)
        }
    shaders = [arm.name for arm in arms if is_shader(arm)]
    for name in shaders:
        same = all(map(torch.equal, results[name], results[shaders[0]]))
        found[name]["same bits"] = 0.0 if same else float("inf")
    return found


def is_shader(arm: Arm) -> bool:
    return isinstance(arm, Ours) and arm.variant != "stock"


def chain(arm: Arm, layers: list[Layer], hidden: Tensor) -> Callable[[], Tensor]:
    """The layers one after the other, each on its own states."""
    states = [fresh(layer, arm) for layer in layers]

    def work() -> Tensor:
        x = hidden
        for layer, own in zip(layers, states, strict=True):
            x = arm(layer, x, own)[0]
        return x

    return work


def replayed(arm: Arm, layers: list[Layer], hidden: Tensor, timing: Timing) -> Callable[[], object]:
    """A graph of the chain; its second replay must give the bits of the chain itself."""
    work = chain(arm, layers, hidden)
    out: list[Tensor] = []
    graph = gpu.capture(lambda: out.append(work()))
    if is_shader(arm):
        plain = chain(arm, layers, hidden)
        for _ in range(gpu.WARM_UP):
            plain()
        for _ in range(2):
            graph.replay()
            wanted = plain()
        torch.cuda.synchronize()
        timing.errors["replay is eager"] = 0.0 if torch.equal(out[-1], wanted) else float("inf")
    return graph.replay


def measure(
    name: str, shape: Shape, layers: list[Layer], rows: int, arms: list[Arm], count: int
) -> Cell:
    hidden = torch.randn(1, rows, shape.hidden, device="cuda").to(torch.bfloat16)
    timings, calls, times = [], {}, {"copy": 4}
    for arm_name, errors in gate(arms, layers[0], hidden).items():
        arm = next(a for a in arms if a.name == arm_name)
        timing = Timing(f"{arm_name} graph", errors)
        timings.append(timing)
        if not timing.verified:
            continue
        calls[timing.arm], times[timing.arm] = replayed(arm, layers, hidden, timing), 8
        if arm_name in EAGER:
            eager = Timing(f"{arm_name} eager", errors)
            timings.append(eager)
            calls[eager.arm], times[eager.arm] = chain(arm, layers, hidden), 1
    graphs = {arm for arm in calls if arm.endswith(" graph")}
    samples = gpu.rounds({**calls, "copy": gpu.Copy()}, count, times, {*graphs, "copy"})
    for timing in timings:
        if timing.verified:
            timing.samples_us = [s / len(layers) for s in samples[timing.arm]]
    weights = shape.weight_bytes * len(layers)
    return Cell(name, rows, len(layers), weights, shape.payload, samples["copy"], timings)


def lines(cell: Cell) -> list[str]:
    rate = gpu.Copy.rate(cell.copy_samples_us)
    width = max(len(t.arm) for t in cell.timings)
    out = [f"{cell.shape} {cell.rows} rows: ideal {cell.ideal:.1f} us at {rate:.0f} GB/s"]
    for t in cell.timings:
        if not t.samples_us:
            out.append(f"  {t.arm:<{width}} unverified: {t.errors}")
            continue
        tenths = statistics.quantiles(t.samples_us, n=10)
        worst = max(t.errors.values(), default=0.0)
        out.append(
            f"  {t.arm:<{width}} {t.median:9.2f} us ({tenths[0]:.2f} .. {tenths[-1]:.2f}), "
            f"{t.median / cell.ideal:6.2f} x ideal, error {worst:.2f} of accepted"
        )
    return out


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cuda",), default="cuda")
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument(
        "--gigabytes", type=float, default=0.8, help="distinct weights behind a timing, at least"
    )
    parser.add_argument(
        "--geometry", nargs="+", default=[], help="more arms: packed and core with these geometries"
    )
    parser.add_argument("--only", nargs="+", help="names of the arms to measure")
    parser.add_argument("--json", type=Path, help="write the receipt, with every sample")


def run(options: argparse.Namespace) -> int:
    if not torch.cuda.is_available():
        raise SystemExit("error: --device cuda: PyTorch sees no CUDA device here")
    arms: list[Arm] = [Ours("stock"), Ours("packed"), Ours("core"), Linears()]
    arms += [Ours(v, g) for g in options.geometry for v in ("packed", "core")]
    if fla_is_here():
        arms.append(Fla())
    if options.only:
        arms = [arm for arm in arms if arm.name in options.only]
    print(gpu.LABEL, "·", " · ".join(f"{k} {v}" for k, v in gpu.machine().items()), flush=True)
    cells = []
    with torch.no_grad():
        for name in options.shape:
            shape = SHAPES[name]
            count = max(3, -(-int(options.gigabytes * 1e9) // shape.weight_bytes))
            layers = [Layer(shape, "cuda", "nvidia", seed) for seed in range(count)]
            for rows in options.rows:
                cells.append(measure(name, shape, layers, rows, arms, options.rounds))
                print("\n".join(lines(cells[-1])), flush=True)
            del layers
            torch.cuda.empty_cache()
    if options.json is not None:
        receipt = {
            "label": gpu.LABEL,
            "machine": gpu.machine(),
            "flash-linear-attention": "measured" if fla_is_here() else "not installed",
            "cells": [asdict(cell) | {"ideal_us": cell.ideal} for cell in cells],
        }
        options.json.write_text(json.dumps(receipt, indent=1) + "\n")
        print(f"receipt: {options.json}")
    return 0 if all(t.samples_us for cell in cells for t in cell.timings) else 1
