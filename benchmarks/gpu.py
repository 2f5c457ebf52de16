"""Timing on an NVIDIA GPU: graphs, events, the copy rate. Its numbers are no Apple results."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

LABEL = "NVIDIA, not an Apple result"
COPY_BYTES = 1 << 30
AHEAD_CYCLES = 400_000  # some 0.2 ms
WARM_UP = 3  # runs of what is captured, before


def machine() -> dict[str, object]:
    """What ran."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def capture(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A graph of the work, which has run before on the capturing side stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def microseconds(work: Callable[[], object], times: int, ahead: bool) -> float:
    """Of one call, over several back to back between two events. `ahead`: the device is kept busy
    at first, so that launches are waiting for it when the first event passes."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    if ahead:
        torch.cuda._sleep(AHEAD_CYCLES)
    start.record()
    for _ in range(times):
        work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3 / times


def rounds(
    arms: dict[str, Callable[[], object]], count: int, times: dict[str, int], ahead: set[str]
) -> dict[str, list[float]]:
    """Microseconds of every arm in every round; each round begins with another arm."""
    samples: dict[str, list[float]] = {name: [] for name in arms}
    names = list(arms)
    for name in names:
        microseconds(arms[name], times[name], name in ahead)
    for i in range(count):
        turn = i % len(names)
        for name in names[turn:] + names[:turn]:
            samples[name].append(microseconds(arms[name], times[name], name in ahead))
    return samples


class Copy:
    """A copy of 1 GiB on the device, counted as bytes read plus bytes written."""

    def __init__(self) -> None:
        self.source = torch.randn(COPY_BYTES // 4, device="cuda")
        self.target = torch.empty_like(self.source)

    def __call__(self) -> None:
        self.target.copy_(self.source)

    @staticmethod
    def rate(samples: list[float]) -> float:
        """GB/s by the median of samples in microseconds."""
        return 2 * COPY_BYTES / statistics.median(samples) / 1e3
