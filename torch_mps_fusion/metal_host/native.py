"""For hosts that launch kernels through runtime/abi.h themselves: addresses, options, results."""

from __future__ import annotations

import ctypes as C
from typing import NamedTuple

from . import abi
from .errors import FaultError
from .library import Kernel, _runtime, native_options
from .options import Options
from .result import Result


class Entry(NamedTuple):
    """`launch` is the address of mh_launch, `entry` the kernel's MhEntry, which is also an address
    inside its library; `names` are those of the buffers, by index, "" where there is none.
    """

    launch: int
    entry: int
    names: tuple[str, ...]


def entry(kernel: Kernel) -> Entry:
    """What a launch of the kernel needs. The kernel must stay alive."""
    kernel.library.code()  # loaded, and the runtime before it
    launch = C.cast(_runtime().mh_launch, C.c_void_p).value
    start = kernel._entry.value
    assert launch and start
    names = [""] * (max((p.index for p in kernel.buffers), default=-1) + 1)
    for p in kernel.buffers:
        names[p.index] = p.name
    return Entry(launch, start, tuple(names))


def options(chosen: Options, checked: bool) -> bytes:
    """MhOptions for libraries that were built checked, or not."""
    return bytes(native_options(chosen, checked))


def result(kernel: Kernel, counts: bytes, per_buffer: bytes, faults: str) -> Result:
    """The result of a launch from MhCounts and MhBufferCounts, time 0; raises FaultError."""
    buffers = (abi.BufferCounts * (len(per_buffer) // C.sizeof(abi.BufferCounts))).from_buffer_copy(
        per_buffer
    )
    found = kernel._result(abi.Counts.from_buffer_copy(counts), buffers, 0.0)
    if faults:
        raise FaultError([kernel.library._fault(line) for line in faults.splitlines()], found)
    return found
