"""Counters by dispatch: occupancy and active cores together or neither, never a cause.

They are different quantities: low occupancy does not show idle cores. Both come from Instruments on
a Mac (`xctrace`); a CPU counts what the emulated dispatches read, wrote and waited for.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

import torch

from torch_mps_fusion.explain import aligned

from .. import emulation, receipts
from ..layers import SHAPES, Layer, ours

INSTRUMENTS = (
    "xctrace record --template 'Metal System Trace' --launch -- python -m benchmarks layer"
)
COMPUTE = "ncu --section Occupancy --section WorkloadDistribution python -m benchmarks layer"
TOOLS = {"cuda": ("Nsight Compute", COMPUTE), "mps": ("Instruments", INSTRUMENTS)}
SHOWN = (
    "read_bytes",
    "written_bytes",
    "read_bytes_all_accesses",
    "barriers",
    "simd_ops",
    "atomics",
    "spins",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", nargs=1, choices=SHAPES, default=["small"])
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--occupancy", type=float, help="per cent, as the tool shows it")
    parser.add_argument("--active-cores", type=float, help="per cent, as the tool shows it")


def frame(occupancy: float | None, active: float | None) -> Mapping[str, float] | None:
    """Both counters, or None for neither. ValueError for one alone or one outside 0 to 100."""
    if (occupancy is None) != (active is None):
        raise ValueError("counters: got one of occupancy and active_cores; accepted: both, neither")
    if occupancy is None or active is None:
        return None
    for name, value in (("occupancy", occupancy), ("active_cores", active)):
        if not 0 <= value <= 100:
            raise ValueError(f"{name}: got {value}; accepted: 0 to 100")
    return {"occupancy": occupancy, "active_cores": active}


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    both = frame(options.occupancy, options.active_cores)
    if both is not None:
        print(
            f"occupancy {both['occupancy']:g} %, active cores {both['active_cores']:g} %: "
            "different quantities, neither a cause"
        )
    if options.device != "cpu":
        tool, words = TOOLS[options.device]
        print(f"occupancy and active cores come from {tool}: {words}")
        yield receipts.new(
            options,
            "arithmetic",
            results={"frame": both},
            needs=[] if both else [f"occupancy and active cores: {tool}"],
        )
        return
    shape = SHAPES[options.shape[0]]
    layer = Layer(shape, "cpu", options.seed)
    hidden, records = layer.hidden(options.rows), []
    for arm in ours(shape, "cpu", options.rows, torch.bfloat16):
        if not arm.shader:
            continue
        with torch.no_grad():
            _, launches = emulation.counted(lambda a=arm: a.to_new_states(layer, hidden))
        lines = [("dispatch", *(n.replace("_", " ") for n in SHOWN))]
        by_dispatch = [emulation.counts(launch) for launch in launches]
        for launch, counts in zip(launches, by_dispatch, strict=True):
            lines.append((launch.family, *(f"{counts[n]:,}" for n in SHOWN)))
        print(f"{arm.name}, {options.rows} rows, emulated")
        print("\n".join(aligned(lines)))
        counted = [
            {"family": launch.family, **c} for launch, c in zip(launches, by_dispatch, strict=True)
        ]
        records.append(
            receipts.arm(
                arm.name,
                emulated=True,
                replay="none",
                dispatches=len(launches),
                counts={"dispatches": counted},
            )
        )
    print(f"frame counters need a Mac: {INSTRUMENTS}")
    yield receipts.new(
        options,
        "cpu-emulation",
        scope="layer",
        rows=options.rows,
        dtype="bfloat16",
        arms=records,
        results={"frame": both},
        needs=["occupancy and active cores: Instruments on a Mac"],
    )
