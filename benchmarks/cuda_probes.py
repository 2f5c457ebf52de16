"""The probes on an NVIDIA GPU: PTX of their Metal text, found or made as the package's own is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from torch_mps_fusion import cuda_kernels

from . import cuda_driver, probes
from .probes import Launch, Probe
from .timers import CudaEvents, capture


def kernel(probe: Probe) -> tuple[cuda_kernels.Kernel, cuda_kernels.Text]:
    """As `cuda_kernels` takes it."""
    constants = ",".join(f"{i}={v}" for i, v in sorted(probes.by_index(probe).items()))
    text = cuda_kernels.Text(probes.text(probe.name), probe.threads)
    return (probe.name, probe.name, constants), text


@cache
def _loaded(name: str, constants: str, text: str, threads: int) -> cuda_driver.Function:
    found, slots = cuda_kernels.find(name, name, constants, cuda_kernels.Text(text, threads))
    return cuda_driver.load(name, found, [int(i) for i in slots.split()])


def function(probe: Probe) -> cuda_driver.Function:
    (_, name, constants), text = kernel(probe)
    return _loaded(name, constants, text.flat, text.threads)


def join(main: torch.cuda.Stream, branches: list[torch.cuda.Stream]) -> None:
    for branch in branches:
        main.wait_stream(branch)
    branches.clear()


class CudaLauncher:
    """Launches are captured into graphs, whose replays `timer` times."""

    replay = "CUDA graph"

    def __init__(self, deadline: float = 60.0) -> None:
        self.timer = CudaEvents(deadline)

    def buffer(self, data: np.ndarray) -> Tensor:
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        return torch.from_numpy(flat).to("cuda", copy=True)

    def read(self, buffer: Tensor, like: np.ndarray) -> np.ndarray:
        return buffer.cpu().numpy().view(like.dtype).reshape(like.shape)

    def once(self, launch: Launch) -> None:
        self.ask(launch)
        torch.cuda.synchronize()

    def work(self, launches: Sequence[Launch]) -> Callable[[], None]:
        for launch in launches:
            function(launch.probe)  # loading is no work of a stream that records
        return capture(lambda: self.ask_all(launches)).replay

    def ask_all(self, launches: Sequence[Launch]) -> None:
        """What waits for nothing is on a branch of its own, which joins before what waits."""
        main, branches = torch.cuda.current_stream(), []
        for launch in launches:
            if launch.after:
                join(main, branches)
                self.ask(launch)
                continue
            branches.append(torch.cuda.Stream())
            branches[-1].wait_stream(main)
            with torch.cuda.stream(branches[-1]):
                self.ask(launch)
        join(main, branches)

    def ask(self, launch: Launch) -> None:
        probe = launch.probe
        cuda_driver.launch(
            function(probe),
            probe.grid,
            probe.threads,
            [b.data_ptr() for b in launch.buffers],
            probe.values,
            torch.cuda.current_stream().cuda_stream,
        )
