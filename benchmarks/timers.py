"""Clocks. Each gives seconds of one call of an arm, over several calls back to back.

Host arms: the process's monotonic clock. CUDA: events around graph replays. Our kernels on MPS: GPU
start and end of a command buffer of our own queue (`metal_queue`); what torch runs on MPS has the
host clock around a synchronised batch only, because `torch.mps.Event` does not time the GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .errors import DeadlineExceeded, TimerMissing

AHEAD_CYCLES = 400_000  # some 0.2 ms of a GPU kept busy while launches queue up behind it
CAPTURE_WARM_UP = 3  # runs of what is captured, before


class Timer(Protocol):
    """`name` goes into receipts; `gpu`: the time is the device's own."""

    name: str
    gpu: bool

    def seconds(self, work: Callable[[], Any], calls: int) -> float:
        """Seconds of one call, over `calls` back to back."""


class HostClock:
    """Monotonic host clock, around work that is done when the call returns or when `settle` is."""

    gpu = False

    def __init__(self, settle: Callable[[], Any] | None = None, name: str = "host clock") -> None:
        self.settle, self.name = settle, name

    def seconds(self, work: Callable[[], Any], calls: int) -> float:
        start = time.perf_counter_ns()
        for _ in range(calls):
            work()
        if self.settle is not None:
            self.settle()
        return (time.perf_counter_ns() - start) * 1e-9 / calls


class Submission:
    """Host clock around asking for work; `settle` waits for what was asked, outside the time."""

    gpu = False
    name = "host clock, submission only"

    def __init__(self, settle: Callable[[], Any]) -> None:
        self.settle = settle

    def seconds(self, work: Callable[[], Any], calls: int) -> float:
        self.settle()
        start = time.perf_counter_ns()
        for _ in range(calls):
            work()
        taken = (time.perf_counter_ns() - start) * 1e-9 / calls
        self.settle()
        return taken


class CudaEvents:
    """Events on the current stream. Arms are graph replays, or plain calls with `ahead` off."""

    gpu = True
    name = "CUDA events"

    def __init__(self, deadline: float = 60.0, ahead: bool = True) -> None:
        if not torch.cuda.is_available():
            raise TimerMissing("CUDA events: PyTorch sees no CUDA device here")
        self.deadline, self.ahead = deadline, ahead

    def seconds(self, work: Callable[[], Any], calls: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if self.ahead:
            torch.cuda._sleep(AHEAD_CYCLES)
        start.record()
        for _ in range(calls):
            work()
        end.record()
        limit = time.monotonic() + self.deadline
        while not end.query():
            if time.monotonic() > limit:
                raise DeadlineExceeded(f"the GPU was not done after {self.deadline:g} s")
        return start.elapsed_time(end) * 1e-3 / calls


@dataclass(frozen=True)
class Captured:
    """A graph, and the work whose tensors it writes: they live as long as it does."""

    graph: torch.cuda.CUDAGraph
    work: Callable[[], Any]

    def replay(self) -> None:
        self.graph.replay()


def capture(work: Callable[[], Any]) -> Captured:
    """A graph of the work, which has run before on the stream that captures: what a launch keeps by
    stream (the control block of a persistent kernel) must be there beforehand."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(CAPTURE_WARM_UP):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    return Captured(graph, work)


def for_torch(device: str, deadline: float = 60.0) -> Timer:
    """The clock of what torch itself runs on that device."""
    if device == "cuda":
        return CudaEvents(deadline)
    if device == "mps":
        return HostClock(torch.mps.synchronize, "host clock, synchronised batch")
    return HostClock()
