"""PTX of every kernel that these commands launch on an NVIDIA GPU, into a folder.

For a GPU machine without a compiler: TORCH_MPS_FUSION_PTX names the folder there. Needs no GPU.
Kernels that are only planned on request (`--geometry`, other rows) are made with the options here.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

import torch

from torch_mps_fusion import cuda_kernels, plan
from torch_mps_fusion import device as devices

from .. import cuda_probes, receipts
from ..layers import SHAPES, Ours
from ..probes import Probe
from . import contract, ksplit, numerics, projection, serving, stream

VARIANTS = (*cuda_kernels.VARIANTS, *cuda_kernels.PERSISTENT)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["0.8b", "9b", "27b"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--geometry", nargs="+", default=[], help="further launch geometries")
    parser.add_argument("--list", action="store_true", help="print the files' names, make none")


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    own = set(of_layers(options.shape, options.rows, ["", *options.geometry]))
    if not options.smoke:
        own |= set(of_commands())
    probes = list(of_probes())[:: 100 if options.smoke else 1]
    if options.list:
        names = [cuda_kernels.file_name(k) for k in sorted(own)]
        names += [cuda_kernels.file_name(*cuda_probes.kernel(p)) for p in probes]
        print("\n".join(names))
        return iter(())
    count = cuda_kernels.fill(options.folder, own)
    for probe in probes:
        kernel, text = cuda_probes.kernel(probe)
        count += cuda_kernels.fill(options.folder, [kernel], text)
    print(f"{count} kernels in {options.folder.name}; there: {cuda_kernels.FOLDER}=<the folder>")
    return iter(())


def of_layers(
    shapes: Iterable[str],
    rows: Iterable[int],
    geometries: Iterable[str],
    *,
    in_place: tuple[bool, ...] = (True,),
) -> Iterator[cuda_kernels.Kernel]:
    """Of calls of every shader variant that takes so many rows."""
    for name, count, variant, geometry, where in product(
        shapes, rows, VARIANTS, geometries, in_place
    ):
        if variant in cuda_kernels.PERSISTENT and count > threshold():
            continue
        arm, shape = Ours(variant, geometry), SHAPES[name]
        program = arm.plan(shape, "cuda", count, torch.bfloat16, in_place=where)
        yield from cuda_kernels.kernels_of(program)


def threshold() -> int:
    return devices.current("cuda").row_threshold


def of_commands() -> Iterator[cuda_kernels.Kernel]:
    """Of what commands call beside the shapes and rows of `layer`."""
    small, some = ["small"], range(1, numerics.ROWS + 1)
    changes = [*numerics.GEOMETRIES, *contract.GEOMETRIES]
    yield from of_layers(small, some, ["", *changes], in_place=(True, False))
    spec = devices.current("cuda")
    for length in (*serving.LENS["cuda"], *serving.QUICK_LENS, *serving.SMOKE_LENS):
        lines = torch.ops.mps_fusion._chunks(1, length, device=spec.name).splitlines()
        chunks = {int(line.split()[1]) for line in lines}
        yield from of_layers(["0.8b", "small"], chunks, [""])
    for rows, (n, k), geometry in product(
        projection.ROWS, projection.shapes().values(), projection.GEOMETRIES
    ):
        yield from cuda_kernels.kernels_of(
            plan.plan_linear(rows, k, n, torch.bfloat16, device=spec.name, geometry=geometry)
        )


def of_probes() -> Iterator[Probe]:
    """All probes by constants and threads; grids and sizes are no part of a kernel."""
    for pattern, threads in product(stream.PATTERNS, stream.THREADS):
        yield stream.probe(pattern, 1, threads, 16)
    for splits in ksplit.SPLITS:
        yield ksplit.probe(ksplit.ROWS, ksplit.MOST_K, 1, splits)
    for stall in (False, True):
        yield contract.probe(stall=stall)
