"""What a launch costs on this machine."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from .library import Library

GROUPS, THREADS = 1000, 32
_TEXT = """#include <metal_stdlib>
using namespace metal;
kernel void nothing(device uint* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  x[i] = i;
}
kernel void meet(device uint* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  x[i] = i;
  threadgroup_barrier(mem_flags::mem_none);
}
"""


def _best(run: Callable[[], object], repeats: int) -> float:
    """Milliseconds of the fastest of `repeats` runs."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times) * 1e3


def rows(repeats: int = 5) -> Iterator[tuple[str, float, float]]:
    """(what, milliseconds of the first launch, of the fastest of `repeats` later ones).

    Every launch is GROUPS threadgroups of THREADS threads.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bench.metal")
        path.write_text(_TEXT)
        for checked in (False, True):
            library = Library(path, checked=checked)
            for name in ("nothing", "meet"):
                kernel = library.kernel(name)
                x = np.zeros(GROUPS * THREADS, np.uint32)

                def run(kernel=kernel, x=x) -> object:
                    return kernel(GROUPS, THREADS, [x])

                first = _best(run, 1)
                what = f"{'one store' if name == 'nothing' else 'and a barrier'}"
                yield what + (", checked" if checked else ""), first, _best(run, repeats)
