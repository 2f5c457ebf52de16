"""Times of metal_host itself: `python -m torch_mps_fusion.metal_host.bench`.

Prints milliseconds a launch (the best of several after the first). They say how long a simulated
launch takes on this machine, and nothing about any GPU.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable

import numpy as np

from .library import Library

TEXT = """#include <metal_stdlib>
using namespace metal;
kernel void add_one(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  x[i] += 1;
}
kernel void group_sum(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]],
                      uint tid [[thread_position_in_threadgroup]],
                      uint groups [[simdgroups_per_threadgroup]]) {
  threadgroup float part[32];
  float sum = simd_sum(x[i]);
  if (tid % 32 == 0) part[tid / 32] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint k = tid / 32 == 0 ? 1 : groups; k < groups; ++k) sum += part[k];
  if (tid == 0) x[i] = sum;
}
"""


def best(launch: Callable[[], object], repeats: int = 7) -> float:
    """Milliseconds of the fastest of `repeats` calls, after one that is not counted."""
    launch()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        launch()
        times.append(time.perf_counter() - begin)
    return 1e3 * min(times)


SIZES = ((1, 32), (1, 256), (1000, 32), (1000, 64), (1000, 256))


def main() -> None:
    x = np.zeros(1000 * 256, np.float32)
    print(f"{'kernel':10} {'groups':>6} {'threads':>7} {'build':>8} {'OS threads':>10} {'ms':>8}")
    for checked, name in itertools.product((False, True), ("add_one", "group_sum")):
        kernel = Library("bench.metal", text=TEXT, checked=checked).kernel(name)
        for (groups, size), workers in itertools.product(SIZES, (1,) if checked else (1, 2)):
            ms = best(functools.partial(kernel, groups, size, [x], threads=workers))
            build = "checked" if checked else "plain"
            print(f"{name:10} {groups:6} {size:7} {build:>8} {workers:10} {ms:8.3f}")


if __name__ == "__main__":
    main()
