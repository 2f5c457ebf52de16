"""What a kernel takes of a core: threads, threadgroup memory, and what the driver says on a device.

Registers and spills are metadata. That they explain a difference is a claim for `paired`: the same
sign in two runs, against a control with the same loads and arithmetic; else it is not established.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torch_mps_fusion import cuda_kernels, plan
from torch_mps_fusion.explain import aligned

from .. import cuda_driver, receipts
from ..layers import SHAPES, ours
from ..metal_queue import MetalQueue


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", nargs=1, choices=SHAPES, default=["27b"])
    parser.add_argument("--rows", type=int, default=8)


Said = dict[str, int]


def of_nothing(deadline: float) -> Callable[[plan.Dispatch], Said]:
    return lambda d: {}


def of_metal(deadline: float) -> Callable[[plan.Dispatch], Said]:
    queue = MetalQueue(deadline)

    def said(d: plan.Dispatch) -> Said:
        made = queue.pipeline(d.family, d.kernel, d.constants)
        return {
            "most_threads": made.maxTotalThreadsPerThreadgroup(),
            "simd_width": made.threadExecutionWidth(),
            "static_threadgroup_bytes": made.staticThreadgroupMemoryLength(),
        }

    return said


def of_cuda(deadline: float) -> Callable[[plan.Dispatch], Said]:
    """`local_bytes` of a thread are its spills and arrays; `resident_groups`: of one core."""

    def said(d: plan.Dispatch) -> Said:
        kernel = cuda_kernels.kernel_of(d)
        ptx, slots = cuda_kernels.find(*kernel)
        found = cuda_driver.load(d.kernel, ptx, [int(i) for i in slots.split()])
        groups = cuda_driver.resident_groups(found, d.threads)
        return {**found.attributes, "resident_groups": groups}

    return said


SAID = ("most_threads", "registers", "local_bytes", "resident_groups", "simd_width")


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    shape = SHAPES["small" if options.smoke else options.shape[0]]
    asks = {"cpu": of_nothing, "cuda": of_cuda, "mps": of_metal}
    ask = asks[options.device](options.deadline)
    found: dict[str, Any] = {}
    lines = [("kernel", "threads", "threadgroup bytes", *(n.replace("_", " ") for n in SAID))]
    for arm in ours(shape, options.device, options.rows, torch.bfloat16):
        if not arm.shader:
            continue
        for d in arm.plan(shape, options.device, options.rows, torch.bfloat16).kernels:
            said = ask(d)
            found[d.kernel] = {"threads": d.threads, "threadgroup_bytes": d.threadgroup_bytes}
            found[d.kernel] |= said
            shown = [str(said.get(n, "-")) for n in SAID]
            lines.append((d.kernel, str(d.threads), str(d.threadgroup_bytes), *shown))
    print("\n".join(aligned([lines[0], *sorted(set(lines[1:]))])))
    print(
        "registers and spills: Metal does not tell; advisory figures of an open compiler are in "
        "NOTES.md"
    )
    cpu = options.device == "cpu"
    yield receipts.new(
        options,
        "arithmetic" if cpu else options.device,
        rows=options.rows,
        dtype="bfloat16",
        results={"kernels": found},
        needs=["what the driver says of a pipeline: a Mac, or an NVIDIA GPU"] if cpu else [],
        caveats=["metadata is no cause"],
    )
