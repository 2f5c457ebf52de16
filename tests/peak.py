"""Memory that tensors take for a while."""

from collections.abc import Callable

import torch


def peak_bytes(work: Callable[[], object]) -> int:
    """The most bytes that `work` held at once, beyond what was there before."""
    with torch.profiler.profile(profile_memory=True) as profile:
        work()
    peak = now = 0
    for event in sorted(profile.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak
