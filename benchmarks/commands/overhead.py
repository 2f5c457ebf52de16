"""Host time from Python to the last encoded dispatch of a decode call, beside aten's calls.

`gdn_layer_`, one row, hidden size 32, where arithmetic is negligible. Our variants' dispatches
go to a recording encoder, which runs nothing; `stock` makes its aten calls on CPU tensors, the
arithmetic of a few hundred elements included. Aimed at: a quarter of stock for `packed`, an eighth
for variants with fewer dispatches. Microseconds are this machine's.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator

import torch
from torch.utils.benchmark import Timer as TorchTimer

from torch_mps_fusion.explain import aligned

from .. import receipts
from ..harness import Arm, measure, options_of
from ..layers import SHAPES, Layer, Ours, ours
from ..timers import HostClock
from .layer import record

DEVICE = "cpu"  # whatever the others run on
TARGETS = {"packed": 1 / 4}
OTHERS = 1 / 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--calls", type=int, default=200, help="calls of a sample")


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    layer = Layer(SHAPES["host"], "cpu", options.seed)
    hidden = layer.hidden(1)
    arms = [a for a in ours(layer.shape, "cpu", 1, torch.bfloat16) if a.variant != "native"]
    calls = 5 if options.smoke else options.calls
    with torch.no_grad(), recording(), one_thread():
        to_measure = [Arm(a.name, call(a, layer, hidden), calls) for a in arms]
        measured = measure(
            to_measure,
            HostClock(),
            rounds=options.rounds or (3 if options.smoke else 21),
            warm_up_s=0.0 if options.smoke else 0.1,
            **options_of(options),
        )
        cross = {a.name: crosscheck(to_measure[i]) for i, a in enumerate(arms)}
    lines = [("arm", "us a call", "of stock", "95 % interval", "aimed at", "")]
    pairs = []
    for arm in arms:
        us, rest = measured.median(arm.name) * 1e6, ("", "", "", "")
        if arm.variant != "stock":
            c = measured.compare(arm.name, "stock")
            pairs.append(c.as_dict())
            aim = TARGETS.get(arm.variant, OTHERS)
            met = "met" if c.ratio.mean <= aim else "missed"
            rest = (
                f"{c.ratio.mean:.3f}",
                f"{c.ratio.low:.3f} to {c.ratio.high:.3f}",
                f"{aim:.3f}",
                met,
            )
        lines.append((arm.name, f"{us:.1f}", *rest))
    print("\n".join(aligned(lines)))
    yield receipts.new(
        options,
        "cpu-native",
        scope="operator",
        tier=1,
        rows=1,
        sequences=1,
        dtype="bfloat16",
        cache_mode="warm",
        measured=measured,
        arms=[record(a, layer, 1, replay="plain calls") for a in arms],
        comparisons=pairs,
        results={"microseconds_by_torch_utils_benchmark": cross},
        caveats=[
            "the encoder records and runs nothing: no Metal call is in it",
            "stock's arithmetic at hidden size 32 is in its time",
        ],
    )


def call(arm: Ours, layer: Layer, hidden: torch.Tensor):
    """One decode call, its arguments made beforehand."""
    states = layer.states()
    projections = layer.packed if arm.shader else [layer.in_proj, layer.out_proj]
    op, keywords = torch.ops.mps_fusion.gdn_layer_, arm.keywords(layer)
    positional = (
        hidden,
        *states,
        [projections[0]],
        *layer.small(),
        [projections[1]],
        layer.input_norm_weight,
    )
    return lambda: op(*positional, **keywords)


def crosscheck(arm: Arm) -> float:
    """Median microseconds by torch.utils.benchmark."""
    timer = TorchTimer("work()", globals={"work": arm.work}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=0.01).median * 1e6


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """No thread pool: waking it would count as stock's overhead."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """Programs of CPU tensors go to the recording encoder instead of metal_host."""
    torch.ops.mps_fusion._record_host_programs(True)
    try:
        yield
    finally:
        torch.ops.mps_fusion._record_host_programs(False)
