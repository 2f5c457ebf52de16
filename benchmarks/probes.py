"""The probes' own kernels (`shaders/`): emulated on a CPU, on our own queue on a Mac."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from torch_mps_fusion.metal_host import Library, Result, source

SHADERS = Path(__file__).parent / "shaders"


@cache
def library(name: str, constants: tuple[tuple[str, int], ...], checked: bool) -> Library:
    values: dict[str | int, object] = dict(constants)
    return Library(SHADERS / f"{name}.metal", values, checked)


def emulate(
    name: str,
    constants: Mapping[str, int],
    grid: int,
    threads: int,
    buffers: Sequence[np.ndarray],
    *,
    checked: bool = True,
    **options: Any,
) -> Result:
    """Runs the kernel of that file in metal_host; arrays are written in place."""
    built = library(name, tuple(sorted(constants.items())), checked)
    return built.kernel(name)(grid, threads, list(buffers), **options)


@dataclass
class Launch:
    """A dispatch on our own queue; `encode` is one call. `bytes_at` are inline, by index."""

    pipeline: Any
    buffers: list[Any]
    bytes_at: dict[int, bytes]
    grid: int
    threads: int
    barrier: bool = True

    def encode(self, encoder: Any) -> None:
        if self.barrier:
            encoder.memoryBarrierWithScope_(1)
        encoder.setComputePipelineState_(self.pipeline)
        for i, buffer in enumerate(self.buffers):
            encoder.setBuffer_offset_atIndex_(buffer, 0, i)
        for i, data in self.bytes_at.items():
            encoder.setBytes_length_atIndex_(data, len(data), i)
        encoder.dispatchThreadgroups_threadsPerThreadgroup_((self.grid, 1, 1), (self.threads, 1, 1))


def pipeline(queue: Any, name: str, constants: Mapping[str, int]) -> Any:
    """The kernel as a pipeline of a `MetalQueue`."""
    text = source.flatten(SHADERS / f"{name}.metal").text
    by_index = {c.index: constants.get(c.name, 0) for c in source.function_constants(text)}
    return queue.pipeline(name, name, by_index, text)


def uint32(*values: int) -> bytes:
    return np.array(values, np.uint32).tobytes()
