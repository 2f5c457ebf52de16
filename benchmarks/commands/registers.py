"""What a kernel takes of a core: threads, threadgroup memory, and what the driver says on a device.

Registers and spills are metadata. That they explain a difference is a claim for `paired`: the same
sign in two runs, against a control with the same loads and arithmetic; else it is not established.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import torch

from torch_mps_fusion.explain import aligned

from .. import receipts
from ..layers import SHAPES, ours
from ..metal_queue import MetalQueue


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", nargs=1, choices=SHAPES, default=["27b"])
    parser.add_argument("--rows", type=int, default=8)


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    shape = SHAPES["small" if options.smoke else options.shape[0]]
    queue = MetalQueue(options.deadline) if options.device == "mps" else None
    found: dict[str, Any] = {}
    lines = [("kernel", "threads", "threadgroup bytes", "driver: most threads", "SIMD width")]
    for arm in ours(shape, options.device, options.rows, torch.bfloat16):
        if not arm.shader:
            continue
        for d in arm.plan(shape, options.device, options.rows, torch.bfloat16).kernels:
            said = {"most_threads": None, "simd_width": None, "static_threadgroup_bytes": None}
            if queue is not None:
                made = queue.pipeline(d.family, d.kernel, d.constants)
                said = {
                    "most_threads": made.maxTotalThreadsPerThreadgroup(),
                    "simd_width": made.threadExecutionWidth(),
                    "static_threadgroup_bytes": made.staticThreadgroupMemoryLength(),
                }
            found[d.kernel] = {
                "threads": d.threads,
                "threadgroup_bytes": d.threadgroup_bytes,
                **said,
            }
            shown = [
                "-" if said[n] is None else str(said[n]) for n in ("most_threads", "simd_width")
            ]
            lines.append((d.kernel, str(d.threads), str(d.threadgroup_bytes), *shown))
    print("\n".join(aligned([lines[0], *sorted(set(lines[1:]))])))
    print(
        "registers and spills: Metal does not tell; advisory figures of an open compiler are in "
        "NOTES.md"
    )
    yield receipts.new(
        options,
        "mps" if queue else "arithmetic",
        rows=options.rows,
        dtype="bfloat16",
        results={"kernels": found},
        needs=[] if queue else ["most threads of a pipeline: a Mac"],
        caveats=["metadata is no cause"],
    )
