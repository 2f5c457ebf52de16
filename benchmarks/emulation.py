"""Counts of shader calls that metal_host ran on this machine. There are no times in here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch_mps_fusion import host_kernels

from .stages import Line, apart

SUMMED = (
    "barriers",
    "simd_ops",
    "atomics",
    "fences",
    "spins",
    "threadgroup_read",
    "threadgroup_written",
)


def counted(work: Callable[[], Any], **options: Any) -> tuple[Any, list[host_kernels.Launch]]:
    """The result of the work and its launches, run with the checking build, which counts bytes and
    reports races; `options` are those of metal_host."""
    with host_kernels.running(checked=True, **options) as launches:
        result = work()
    return result, launches


def counts(launch: host_kernels.Launch) -> dict[str, int]:
    """Of one launch: device bytes (each once, and every access), and what threads did."""
    buffers = launch.result.buffers or {}
    lines = apart(
        [
            Line(launch.family, name, b.read, b.read_distinct, b.written_distinct)
            for name, b in buffers.items()
        ]
    )
    found = {
        "read_bytes": sum(x.distinct for x in lines),
        "written_bytes": sum(x.written for x in lines),
        "read_bytes_all_accesses": sum(x.requested for x in lines),
        "written_bytes_all_accesses": sum(b.written for b in buffers.values()),
    }
    counters = dataclasses.asdict(launch.result.counters)
    return found | {name: counters[name] for name in SUMMED}


def total(launches: list[host_kernels.Launch]) -> dict[str, int]:
    """Sums over launches, and how many there were."""
    each = [counts(launch) for launch in launches]
    names = each[0] if each else {}
    return {"launches": len(each)} | {n: sum(c[n] for c in each) for n in names}
