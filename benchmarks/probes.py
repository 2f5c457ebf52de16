"""The probes' own kernels (`shaders/`): emulated on a CPU, launched on a Mac or an NVIDIA GPU.

A launcher of a device runs them: `MetalLauncher` on our own queue, `cuda_probes.CudaLauncher`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from torch_mps_fusion.metal_host import Library, Result, source

from .metal_queue import BARRIER_BUFFERS, MetalQueue
from .timers import Timer

SHADERS = Path(__file__).parent / "shaders"


@dataclass(frozen=True)
class Probe:
    """The kernel of `shaders/<name>.metal`; `values` are arguments by value, by index."""

    name: str
    constants: Mapping[str, int]
    grid: int
    threads: int
    values: Mapping[int, bytes] = field(default_factory=dict)


@dataclass
class Launch:
    """A probe on buffers of a launcher, by index. `after`: it waits for the launch before it."""

    probe: Probe
    buffers: Sequence[Any]
    after: bool = True


class Launcher(Protocol):
    """How probes run on a device. `timer` times what `work` gives, in the `replay` mode."""

    timer: Timer
    replay: str

    def buffer(self, data: np.ndarray) -> Any:
        """Memory of the device that begins as `data`."""

    def read(self, buffer: Any, like: np.ndarray) -> np.ndarray:
        """The content of a buffer; dtype and shape are those of `like`."""

    def once(self, launch: Launch) -> None:
        """Runs the launch, exactly once, and waits for it."""

    def work(self, launches: Sequence[Launch]) -> Any:
        """The launches as one call for `timer`. It may run here already."""


def run(launcher: Launcher, probe: Probe, arrays: Sequence[np.ndarray]) -> None:
    """One launch over arrays by index, which are written in place."""
    buffers = [launcher.buffer(a) for a in arrays]
    launcher.once(Launch(probe, buffers))
    for array, buffer in zip(arrays, buffers, strict=True):
        array[...] = launcher.read(buffer, array)


def text(name: str) -> str:
    return source.flatten(SHADERS / f"{name}.metal").text


def by_index(probe: Probe) -> dict[int, int]:
    """The function constants by index; what is not given is 0."""
    declared = source.function_constants(text(probe.name))
    return {c.index: probe.constants.get(c.name, 0) for c in declared}


@cache
def library(name: str, constants: tuple[tuple[str, int], ...], checked: bool) -> Library:
    values: dict[str | int, object] = dict(constants)
    return Library(SHADERS / f"{name}.metal", values, checked)


def emulate(
    probe: Probe, arrays: Sequence[np.ndarray], *, checked: bool = True, **options: Any
) -> Result:
    """One launch in metal_host over arrays by index, which are written in place."""
    built = library(probe.name, tuple(sorted(probe.constants.items())), checked)
    given: dict[str | int, object] = {**dict(enumerate(arrays)), **probe.values}
    return built.kernel(probe.name)(probe.grid, probe.threads, given, **options)


@dataclass
class Encodable:
    """Launches with their pipelines, for our own queue; `encode` is one call."""

    launches: Sequence[Launch]
    pipelines: Sequence[Any]

    def encode(self, encoder: Any) -> None:
        for launch, pipeline in zip(self.launches, self.pipelines, strict=True):
            if launch.after:
                encoder.memoryBarrierWithScope_(BARRIER_BUFFERS)
            encoder.setComputePipelineState_(pipeline)
            for i, buffer in enumerate(launch.buffers):
                encoder.setBuffer_offset_atIndex_(buffer, 0, i)
            for i, data in launch.probe.values.items():
                encoder.setBytes_length_atIndex_(data, len(data), i)
            grid, threads = (launch.probe.grid, 1, 1), (launch.probe.threads, 1, 1)
            encoder.dispatchThreadgroups_threadsPerThreadgroup_(grid, threads)


class MetalLauncher:
    """Probes on a `MetalQueue`, which is their clock too."""

    replay = "command buffer"

    def __init__(self, deadline: float = 60.0) -> None:
        self.timer = MetalQueue(deadline)

    def buffer(self, data: np.ndarray) -> Any:
        return self.timer.buffer(data.nbytes, memoryview(np.ascontiguousarray(data)).cast("B"))

    def read(self, buffer: Any, like: np.ndarray) -> np.ndarray:
        data = bytes(buffer.contents().as_buffer(like.nbytes)[: like.nbytes])
        return np.frombuffer(data, like.dtype).reshape(like.shape)

    def once(self, launch: Launch) -> None:
        self.timer.seconds(self.work([launch]), 1)

    def work(self, launches: Sequence[Launch]) -> Encodable:
        made = [
            self.timer.pipeline(n.probe.name, n.probe.name, by_index(n.probe), text(n.probe.name))
            for n in launches
        ]
        return Encodable(launches, made)


def launcher_of(device: str, deadline: float) -> Launcher:
    """Of a GPU. TimerMissing says what is missing."""
    from .cuda_probes import CudaLauncher

    return {"cuda": CudaLauncher, "mps": MetalLauncher}[device](deadline)


def uint32(*values: int) -> bytes:
    return np.array(values, np.uint32).tobytes()
