"""Interleaved timing of several arms in one process, and the report of it."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch


def machine() -> dict[str, object]:
    """What ran: processor, threads, versions, instruction set of the native kernels."""
    return {
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "isa": torch.ops.mps_fusion._cpu_isa(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def interleaved(
    arms: dict[str, Callable[[], object]], seconds: float, *, warm_up: int = 2, least: int = 5
) -> dict[str, list[float]]:
    """Seconds of every call of every arm.

    Each round calls each arm once, so that a disturbance of the machine meets all of them; rounds
    go on for ``seconds``, at least ``least`` of them. Compare minima: noise only adds.
    """
    for _ in range(warm_up):
        for call in arms.values():
            call()
    samples: dict[str, list[float]] = {name: [] for name in arms}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(samples.values()))) < least:
        for name, call in arms.items():
            start = time.perf_counter()
            call()
            samples[name].append(time.perf_counter() - start)
    return samples


def write_json(path: Path, machine_line: dict[str, object], rows: list[dict]) -> None:
    path.write_text(json.dumps({"machine": machine_line, "rows": rows}, indent=1) + "\n")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
