"""Counters by dispatch: occupancy and active cores together or neither, never a cause.

They are different quantities: low occupancy does not show idle cores. On a Mac both come from
Instruments (`xctrace`), on an NVIDIA GPU from Nsight Compute (`ncu`), with the bytes that device
memory moved; a CPU counts what the emulated dispatches read, wrote and waited for.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from torch_mps_fusion.explain import aligned

from .. import emulation, facts, receipts
from ..errors import BenchmarkError
from ..layers import SHAPES, Layer, Ours, ours
from .layer import record

INSTRUMENTS = (
    "xctrace record --template 'Metal System Trace' --launch -- python -m benchmarks layer"
)
SHOWN = (
    "read_bytes",
    "written_bytes",
    "read_bytes_all_accesses",
    "barriers",
    "simd_ops",
    "atomics",
    "spins",
)
# By Nsight Compute's names. Per cent: warps of an active core, and active cycles of all cores.
METRICS = {
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "active_cores": "sm__cycles_active.avg.pct_of_peak_sustained_elapsed",
    "read_bytes": "dram__bytes_read.sum",
    "written_bytes": "dram__bytes_write.sum",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", nargs=1, choices=SHAPES, default=["small"])
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--occupancy", type=float, help="per cent, as the tool shows it")
    parser.add_argument("--active-cores", type=float, help="per cent, as the tool shows it")
    parser.add_argument("--calls-only", action="store_true", help=argparse.SUPPRESS)


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
    shape = SHAPES[options.shape[0]]
    found = ours(shape, options.device, options.rows, torch.bfloat16)
    arms = [arm for arm in found if arm.shader]
    with torch.no_grad():
        if options.calls_only:
            call_each(Layer(shape, options.device, options.seed), arms, options.rows)
        elif options.device == "mps":
            print(f"frame counters come from Instruments: {INSTRUMENTS}")
            needs = [] if both else ["occupancy and active cores: Instruments on a Mac"]
            yield receipts.new(options, "arithmetic", results={"frame": both}, needs=needs)
        elif options.device == "cuda":
            yield profiled(options, arms)
        else:
            yield emulated(options, arms, both)


def call_each(layer: Layer, arms: Sequence[Ours], rows: int) -> None:
    """What the profiler watches: one call of every arm."""
    hidden = layer.hidden(rows)
    for arm in arms:
        arm(layer, hidden, layer.states())
    torch.cuda.synchronize()


def profiled(options: argparse.Namespace, arms: Sequence[Ours]) -> receipts.Receipt:
    tool = shutil.which("ncu")
    if tool is None:
        raise BenchmarkError("counters of an NVIDIA GPU need Nsight Compute (ncu) on PATH")
    metrics = ",".join(METRICS.values())
    command = [tool, "--csv", "--print-units", "base", "--clock-control", "none"]
    command += ["--kernel-name", "regex:^tmf_", "--metrics", metrics, sys.executable]
    command += ["-m", "benchmarks", "counters", "--calls-only", "--device", "cuda"]
    command += ["--shape", options.shape[0], "--rows", str(options.rows)]
    try:
        done = subprocess.run(
            command, cwd=facts.ROOT, capture_output=True, text=True, timeout=options.deadline
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"ncu: not done after {options.deadline:g} s") from None
    kernels = parse(done.stdout.splitlines())
    layer, records = Layer(SHAPES[options.shape[0]], "cuda", options.seed), []
    plans = [arm.plan(layer.shape, "cuda", options.rows, torch.bfloat16) for arm in arms]
    wanted = [d.kernel for p in plans for d in p.kernels]
    if [name for name, _ in kernels] != wanted:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise BenchmarkError(f"ncu saw {len(kernels)} kernels of {len(wanted)}: {said}")
    rest = iter(kernels)
    for arm, program in zip(arms, plans, strict=True):
        own = [{"family": d.family, **next(rest)[1]} for d in program.kernels]
        lines = [("dispatch", *(n.replace("_", " ") for n in METRICS))]
        lines += [(c["family"], *(f"{c[n]:,.1f}" for n in METRICS)) for c in own]
        print(f"{arm.name}, {options.rows} rows: by Nsight Compute, caches flushed before each")
        print("\n".join(aligned(lines)))
        fields = {"instrumented": True, "replay": "none", "counts": {"dispatches": own}}
        records.append(record(arm, layer, options.rows, **fields))
    return receipts.new(
        options,
        "cuda",
        scope="layer",
        rows=options.rows,
        dtype="bfloat16",
        arms=records,
        results={"metrics": METRICS},
        caveats=["each kernel is replayed alone, with cold caches", "a counter is no cause"],
    )


def parse(lines: Iterable[str]) -> list[tuple[str, dict[str, float]]]:
    """(kernel, counters by our names) in order of launch, of ncu's table among other lines."""
    names = {metric: name for name, metric in METRICS.items()}
    found: dict[str, tuple[str, dict[str, float]]] = {}
    for row in csv.DictReader(line for line in lines if line.startswith('"')):
        if row["Metric Name"] in names:
            kernel = row["Kernel Name"].split("(")[0]
            values = found.setdefault(row["ID"], (kernel, {}))[1]
            values[names[row["Metric Name"]]] = float(row["Metric Value"].replace(",", ""))
    return list(found.values())


def emulated(
    options: argparse.Namespace, arms: Sequence[Ours], both: Mapping[str, float] | None
) -> receipts.Receipt:
    layer = Layer(SHAPES[options.shape[0]], "cpu", options.seed)
    hidden, records = layer.hidden(options.rows), []
    for arm in arms:
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
    return receipts.new(
        options,
        "cpu-emulation",
        scope="layer",
        rows=options.rows,
        dtype="bfloat16",
        arms=records,
        results={"frame": both},
        needs=["occupancy and active cores: Instruments on a Mac"],
    )
