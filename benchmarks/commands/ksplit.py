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
from torch_mps_fusion.tolerances import error, tolerance

from .. import probes, receipts
from ..harness import Arm, check, measure, options_of
from ..numeric_classes import bf16_ulps, histogram
from ..probes import Launch, Launcher, Probe

SHAPES = {"ffn_down": (5120, 17408), "gdn_out": (5120, 6144)}
MODES = ("dependent", "independent")  # whether a call reads what the one before wrote
ROWS, MOST_K = 8, max(k for _, k in SHAPES.values())
SPLITS = (1, 2, 4, 8, 16)
EMULATED_OUTPUTS = 256  # of the N; every output sees the whole K


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--k-splits", type=int, nargs="+", default=list(SPLITS))
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


def probe(rows: int, k: int, n: int, splits: int) -> Probe:
    args = {4: probes.uint32(rows, k, n, k)}
    return Probe("ksplit", {"kSplits": splits}, n, 32 * splits, args)


def product(
    x: Tensor, w: Tensor, splits: int, launcher: Launcher | None = None
) -> tuple[Tensor, Tensor]:
    """(output in bfloat16, sums in float32 before rounding), in metal_host without a launcher."""
    (rows, k), n = x.shape, w.shape[0]
    y = torch.full((rows, n), float("nan"), dtype=torch.bfloat16)
    sums = torch.full((rows, n), float("nan"))
    arrays = [bits(x), bits(w), bits(y), sums.numpy()]
    if launcher is None:
        probes.emulate(probe(rows, k, n, splits), arrays, checked=False)
    else:
        probes.run(launcher, probe(rows, k, n, splits), arrays)
    return y, sums


def chained(x: Tensor, y: Tensor) -> Tensor:
    """The next call's input in dependent mode: the output in its first columns."""
    n = min(x.shape[1], y.shape[1])
    return torch.cat([y[:, :n], x[:, n:]], 1)


def numerics(
    x: Tensor, w: Tensor, splits: list[int], launcher: Launcher | None
) -> dict[int, dict[str, Any]]:
    """ULP histogram and byte identity against split 1, after one call and after two that depend.

    A split whose float sums differ is not byte-identical, whether or not a rounding of this sample
    of outputs shows it. GateFailed unless every split is right against float64.
    """
    outputs, want = {}, x.double() @ w.double().T
    limit = tolerance("output", torch.bfloat16).rms
    for s in sorted({1, *splits}):
        first = product(x, w, s, launcher)
        check({"output": error(first[0], want) / limit}, f"split {s}")
        second = product(chained(x, first[0]), w, s, launcher)
        outputs[s] = {"independent": first, "dependent": second}
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
    cpu = options.device == "cpu"
    launcher = None if cpu else probes.launcher_of(options.device, options.deadline)
    found = numerics(x, w, options.k_splits, launcher)
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
    if launcher is not None:
        return timed(options, launcher, x, w, shared)
    print("emulated: no times")
    records = [
        receipts.arm(f"split {s}", launch=f"splits {s}", replay="none", emulated=True, counts=f)
        for s, f in found.items()
    ]
    return receipts.new(
        options,
        "cpu-emulation",
        arms=records,
        needs=["times of both modes: a Mac, or an NVIDIA GPU"],
        **shared,
    )


def timed(
    options: argparse.Namespace, launcher: Launcher, x: Tensor, w: Tensor, shared: dict[str, Any]
) -> receipts.Receipt:
    """Two calls are one sample: in dependent mode the second reads what the first wrote."""
    (rows, k), n = x.shape, w.shape[0]
    weight, x1, x2 = (launcher.buffer(bits(t)) for t in (w, x, x))
    y1, y2 = (launcher.buffer(bits(x)) for _ in range(2))
    s1, s2 = (launcher.buffer(np.zeros(rows * n, np.float32)) for _ in range(2))
    arms, records = [], []
    for s in options.k_splits:
        for mode in MODES:
            feeds, own = mode == "dependent", probe(rows, k, n, s)
            first = Launch(own, [x1, weight, y1, s1], feeds)
            second = Launch(own, [y1 if feeds else x2, weight, y2, s2], feeds)
            name = f"split {s}, {mode}"
            arms.append(Arm(name, launcher.work([first, second]), 16, 2))
            records.append(
                receipts.arm(
                    name, launch=f"splits {s}", replay=launcher.replay, payload_bytes=w.nbytes
                )
            )
    measured = measure(
        arms,
        launcher.timer,
        rounds=options.rounds or 21,
        warm_up_s=options.warm_up_gpu_seconds,
        **options_of(options),
    )
    for record in records:
        print(f"{record['name']:<24} {measured.median(record['name']) * 1e6:9.2f} us")
    print(receipts.LABELS[options.device])
    base = options.k_splits[0]
    pairs = [
        measured.compare(f"split {s}, {m}", f"split {base}, {m}").as_dict()
        for s in options.k_splits[1:]
        for m in MODES
    ]
    return receipts.new(
        options,
        options.device,
        cache_mode="warm",
        working_set_bytes=w.nbytes,
        measured=measured,
        arms=records,
        comparisons=pairs,
        **shared,
    )
