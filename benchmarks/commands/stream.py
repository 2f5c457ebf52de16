"""Streaming rate: three access patterns x four grids x two threadgroup sizes, then one repeated.

The best cell of the sweep is not a rate; the rate is the median of repeats of the chosen cell. On a
CPU the same kernel is emulated: every word must be read once, and the checksum be right.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from itertools import product

import numpy as np

from torch_mps_fusion import device as devices
from torch_mps_fusion.explain import aligned

from .. import facts, probes, receipts
from ..errors import GateFailed
from ..harness import Arm, measure, options_of
from ..probes import Launch, Probe

PATTERNS = ("striped", "interleaved16", "blocked-interleaved16x4")
GRIDS = (1, 2, 4, 8)  # threadgroups a core
THREADS = (256, 1024)
LEAST_BYTES = 2_000_000_000
EMULATED_BYTES = 1 << 18


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bytes", type=int, help="default: 2 GB, or 8 x the cache if it is more")
    parser.add_argument("--repeats", type=int, default=9, help="of the chosen cell")


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    if options.repeats < 9:
        raise ValueError(f"repeats: got {options.repeats}; accepted: 9 or more")
    kind = emulated if options.device == "cpu" else measured
    yield kind(options, list(product(PATTERNS, GRIDS, THREADS)))


def words(size: int, seed: int) -> tuple[np.ndarray, int]:
    """Seeded words, and their sum modulo 2^32."""
    if size < 16 or size % 16:
        raise ValueError(f"bytes: got {size}; accepted: a positive multiple of 16")
    x = np.random.default_rng(seed).integers(0, 2**32, size // 4, np.uint32)
    return x, int(x.sum(dtype=np.uint64) % 2**32)


def probe(pattern: str, grid: int, threads: int, size: int) -> Probe:
    args = {2: probes.uint32(size // 16, grid * threads)}
    return Probe("stream", {"kPattern": PATTERNS.index(pattern)}, grid, threads, args)


def check(sums: np.ndarray, want: int, cell: tuple) -> None:
    if int(sums.sum(dtype=np.uint64) % 2**32) != want:
        raise GateFailed(f"{cell}: the checksum of what was read is wrong")


def emulated(options: argparse.Namespace, cells: list[tuple]) -> receipts.Receipt:
    x, want = words(options.bytes or EMULATED_BYTES, options.seed)
    records = []
    for pattern, grid, threads in cells:
        sums = np.zeros(grid * threads, np.uint32)
        result = probes.emulate(probe(pattern, grid, threads, x.nbytes), [x, sums])
        check(sums, want, (pattern, grid, threads))
        traffic = (result.buffers or {})["x"]
        if (traffic.read, traffic.read_distinct) != (x.nbytes, x.nbytes):
            raise GateFailed(f"{pattern}: {traffic.read} B read of {x.nbytes}")
        records.append(
            receipts.arm(
                f"{pattern} {grid} x {threads}",
                launch=f"{pattern} grid {grid} threads {threads}",
                replay="none",
                emulated=True,
                payload_bytes=x.nbytes,
                counts={"read_bytes": traffic.read, "groups": grid, "threads": threads},
            )
        )
    print(
        f"{len(records)} of {len(cells)} cells: {x.nbytes} B, every word read once, checksum right"
    )
    print("emulated: no rate. A rate needs a GPU: python -m benchmarks stream --device mps")
    return receipts.new(
        options,
        "cpu-emulation",
        scope="operator",
        tier=1,
        arms=records,
        results={"cells": len(records)},
        needs=["rates: a Mac"],
    )


def measured(options: argparse.Namespace, cells: list[tuple]) -> receipts.Receipt:
    device = options.device
    launcher = probes.launcher_of(device, options.deadline)
    size = options.bytes or max(LEAST_BYTES, 8 * (facts.cache_bytes(device) or 0))
    size = 1 << 24 if options.smoke else size
    x, want = words(size, options.seed)
    buffer, cores = launcher.buffer(x), devices.current(device).cores
    works, records = {}, []
    for pattern, grid, threads in cells:
        groups = grid * cores
        poison = np.zeros(groups * threads, np.uint32)
        launch = Launch(probe(pattern, groups, threads, size), [buffer, launcher.buffer(poison)])
        name = f"{pattern} {groups} x {threads}"
        works[name] = launcher.work([launch])
        launcher.once(launch)
        check(launcher.read(launch.buffers[1], poison), want, (pattern, groups, threads))
        records.append(
            receipts.arm(
                name,
                launch=name,
                replay=launcher.replay,
                payload_bytes=size,
                selection="best of sweep",
            )
        )
    sweep = measure(
        [Arm(name, work) for name, work in works.items()],
        launcher.timer,
        rounds=2,
        warm_up_s=options.warm_up_gpu_seconds,
        control=False,
        **options_of(options),
    )
    best = min(sweep.samples, key=sweep.minimum)
    final = measure(
        [Arm("chosen", works[best])],
        launcher.timer,
        rounds=options.repeats,
        warm_up_s=options.warm_up_gpu_seconds,
        **options_of(options),
    )
    for record in records:
        record["samples_s"] = sweep.samples[record["name"]]
    chosen = receipts.arm("chosen", launch=best, replay=launcher.replay, payload_bytes=size)
    rates = {n: size / sweep.minimum(n) / 1e9 for n in works}
    fixed = size / statistics.median(final.samples["chosen"]) / 1e9
    print("\n".join(aligned([("cell", "GB/s"), *((n, f"{r:.1f}") for n, r in rates.items())])))
    print(f"best of run {rates[best]:.1f} GB/s (not a rate); fixed configuration: {fixed:.1f}")
    print(receipts.LABELS[device])
    return receipts.new(
        options,
        device,
        scope="operator",
        tier=1,
        cache_mode="cold",
        working_set_bytes=size,
        measured=final,
        arms=[*records, chosen],
        results={"best_of_run": {best: rates[best]}, "fixed_config_median": fixed},
    )
