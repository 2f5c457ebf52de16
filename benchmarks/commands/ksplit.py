"""A deeper K split of a projection: bits, and times of dependent and of independent calls.

The output of every split is compared with split 1 in units in the last place. A run that asks for
byte identity rejects every split that moves a bit. No split is a default for all shapes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_mps_fusion.explain import aligned

from .. import probes, receipts
from ..harness import Arm, measure, options_of
from ..metal_queue import MetalQueue
from ..numeric_classes import bf16_ulps, histogram

SHAPES = {"ffn_down": (5120, 17408), "gdn_out": (5120, 6144)}
MODES = ("dependent", "independent")  # whether a call reads what the one before wrote
ROWS = 8
EMULATED_OUTPUTS = 256  # of the N; every output sees the whole K


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--k-splits", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument(
        "--require",
        choices=("bytes", "tolerance"),
        default="tolerance",
        help="bytes: a split that moves a bit is an error",
    )


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    if 1 not in options.k_splits or not all(1 <= s <= 32 for s in options.k_splits):
        raise ValueError(f"k_splits: got {options.k_splits}; accepted: 1 and others up to 32")
    for name in options.shape:
        n, k = SHAPES[name]
        if options.smoke:
            n, k = 8, 512
        elif options.device == "cpu":
            n = EMULATED_OUTPUTS
        yield cell(options, name, n, k)


def operands(n: int, k: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, k, generator=generator).bfloat16()
    w = (torch.randn(n, k, generator=generator) * k**-0.5).bfloat16()
    return x, w


def bits(t: Tensor) -> np.ndarray:
    return t.view(torch.uint16).numpy()


def emulated(x: Tensor, w: Tensor, splits: int) -> tuple[Tensor, Tensor]:
    """(output in bfloat16, sums in float32 before rounding)."""
    (rows, k), n = x.shape, w.shape[0]
    y = torch.full((rows, n), float("nan"), dtype=torch.bfloat16)
    sums = torch.full((rows, n), float("nan"))
    args = np.array([rows, k, n, k], np.uint32)
    probes.emulate(
        "ksplit",
        {"kSplits": splits},
        n,
        32 * splits,
        [bits(x), bits(w), bits(y), sums.numpy(), args],
        checked=False,
    )
    return y, sums


def chained(x: Tensor, y: Tensor) -> Tensor:
    """The next call's input in dependent mode: the output in its first columns."""
    n = min(x.shape[1], y.shape[1])
    return torch.cat([y[:, :n], x[:, n:]], 1)


def numerics(x: Tensor, w: Tensor, splits: list[int]) -> dict[int, dict[str, Any]]:
    """ULP histogram and byte identity against split 1, after one call and after two that depend.

    A split whose float sums differ is not byte-identical, whether or not a rounding of this sample
    of outputs shows it.
    """
    outputs = {}
    for s in sorted({1, *splits}):
        first = emulated(x, w, s)
        outputs[s] = {"independent": first, "dependent": emulated(chained(x, first[0]), w, s)}
    found = {}
    for s in splits:
        ulps = {m: bf16_ulps(outputs[s][m][0], outputs[1][m][0]) for m in MODES}
        moved = outputs[s]["independent"][1] != outputs[1]["independent"][1]
        found[s] = {
            "ulp_histogram": {m: histogram(u) for m, u in ulps.items()},
            "max_ulp": {m: int(u.max()) for m, u in ulps.items()},
            "float_sums_moved": int(moved.sum()),
            "byte_identical": not moved.any() and all(int(u.max()) == 0 for u in ulps.values()),
        }
    return found


def cell(options: argparse.Namespace, name: str, n: int, k: int) -> receipts.Receipt:
    if k % max(options.k_splits):
        raise ValueError(f"k_splits: {k} does not divide by {max(options.k_splits)}")
    x, w = operands(n, k, options.seed)
    found = numerics(x, w, options.k_splits)
    head = ("split", *(f"{m}: moved, max ulp" for m in MODES), "float sums moved", "byte identity")
    lines = [head]
    for s, f in found.items():
        verdict = "kept" if f["byte_identical"] else "rejected"
        moved = [ROWS * n - f["ulp_histogram"][m]["0"] for m in MODES]
        cells = [f"{c} of {ROWS * n}, {f['max_ulp'][m]}" for c, m in zip(moved, MODES, strict=True)]
        lines.append((str(s), *cells, str(f["float_sums_moved"]), verdict))
    print(f"{name}: {ROWS} x {k} by {n} outputs, bfloat16")
    print("\n".join(aligned(lines)))
    failed = []
    if options.require == "bytes":
        failed = [
            f"{name}: split {s} moves bits" for s, f in found.items() if not f["byte_identical"]
        ]
    shared: dict[str, Any] = {
        "scope": "operator",
        "tier": 1,
        "rows": ROWS,
        "dtype": "bfloat16",
        "numerics": {"splits": {str(s): f for s, f in found.items()}, "class": "tolerance"},
        "results": {"part": name, "modes": list(MODES), "failed": failed},
        "caveats": ["a probe kernel; the layer's projections keep one split for all rows"],
    }
    if options.device == "mps":
        return timed(options, x, w, shared)
    print("emulated: no times" if options.device == "cpu" else "no times: bits only")
    records = [
        receipts.arm(f"split {s}", launch=f"splits {s}", replay="none", emulated=True, counts=f)
        for s, f in found.items()
    ]
    return receipts.new(
        options, "cpu-emulation", arms=records, needs=["times of both modes: a Mac"], **shared
    )


class Calls:
    """Two calls: in dependent mode the second reads what the first wrote, behind a barrier."""

    def __init__(self, first: probes.Launch, second: probes.Launch) -> None:
        self.both = first, second

    def encode(self, encoder: Any) -> None:
        for launch in self.both:
            launch.encode(encoder)


def timed(
    options: argparse.Namespace, x: Tensor, w: Tensor, shared: dict[str, Any]
) -> receipts.Receipt:
    queue, (rows, k), n = MetalQueue(options.deadline), x.shape, w.shape[0]
    args = {4: probes.uint32(rows, k, n, k)}
    weight, x1, x2 = (queue.buffer(t.nbytes, bits(t).tobytes()) for t in (w, x, x))
    y1, y2 = queue.buffer(x.nbytes), queue.buffer(x.nbytes)
    sums = queue.buffer(4 * rows * n)
    arms, records = [], []
    for s in options.k_splits:
        pipeline = probes.pipeline(queue, "ksplit", {"kSplits": s})

        def launch(a: Any, b: Any, wait: bool, p: Any = pipeline, s: int = s) -> probes.Launch:
            return probes.Launch(p, [a, weight, b, sums], args, n, 32 * s, wait)

        for mode in MODES:
            feeds = mode == "dependent"
            pair = Calls(launch(x1, y1, feeds), launch(y1 if feeds else x2, y2, feeds))
            arms.append(Arm(f"split {s}, {mode}", pair, 16, 2))
            records.append(
                receipts.arm(
                    f"split {s}, {mode}",
                    launch=f"splits {s}",
                    replay="command buffer",
                    payload_bytes=w.nbytes,
                )
            )
    measured = measure(
        arms,
        queue,
        rounds=options.rounds or 21,
        warm_up_s=options.warm_up_gpu_seconds,
        **options_of(options),
    )
    for record in records:
        print(f"{record['name']:<24} {measured.median(record['name']) * 1e6:9.2f} us")
    base = options.k_splits[0]
    pairs = [
        measured.compare(f"split {s}, {m}", f"split {base}, {m}").as_dict()
        for s in options.k_splits[1:]
        for m in MODES
    ]
    return receipts.new(
        options,
        "mps",
        cache_mode="warm",
        working_set_bytes=w.nbytes,
        measured=measured,
        arms=records,
        comparisons=pairs,
        **shared,
    )
