"""The few calls of CUDA's driver that load and launch the probes' kernels, through ctypes.

The package launches its own kernels in csrc/cuda; arguments have the same layout here: one struct
by value, as torch_mps_fusion/metal_host/shim/msl/launch_ptx.h describes it.
"""

from __future__ import annotations

import ctypes as C
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from .errors import BenchmarkError, TimerMissing

BUFFERS, VALUES, VALUE_BYTES = 31, 4, 128
ERROR_LOG, ERROR_LOG_BYTES = 5, 6  # CUjit_option
# CUfunction_attribute
ATTRIBUTES = {"most_threads": 0, "static_threadgroup_bytes": 1, "local_bytes": 3, "registers": 4}
NAMES = (
    "cuGetErrorName",
    "cuDeviceGet",
    "cuDevicePrimaryCtxRetain",
    "cuCtxSetCurrent",
    "cuModuleLoadDataEx",
    "cuModuleGetFunction",
    "cuFuncGetAttribute",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuLaunchKernel",
)


class Arguments(C.Structure):
    _fields_ = [
        ("buffers", C.c_void_p * BUFFERS),
        ("threadgroups", C.c_uint32 * BUFFERS),
        ("padding", C.c_uint32 * 3),
        ("values", (C.c_ubyte * VALUE_BYTES) * VALUES),
    ]


@dataclass(frozen=True)
class Function:
    """A loaded kernel. `slots`: buffer indices of its arguments by value, in order."""

    name: str
    handle: Any
    slots: tuple[int, ...]
    attributes: Mapping[str, int]


@cache
def library() -> Any:
    """libcuda. TimerMissing where there is no GPU to use it with."""
    if not torch.cuda.is_available():
        raise TimerMissing("CUDA: PyTorch sees no CUDA device here")
    found = C.CDLL("libcuda.so.1")
    for name in NAMES:
        getattr(found, name).restype = C.c_int
    return found


def check(result: int, what: str) -> None:
    if result != 0:
        name = C.c_char_p()
        library().cuGetErrorName(C.c_int(result), C.byref(name))
        raise BenchmarkError(f"{what}: {(name.value or b'CUDA error').decode()} ({result})")


@cache
def primary_context() -> C.c_void_p:
    """The device's, which is PyTorch's."""
    device, context = C.c_int(), C.c_void_p()
    check(library().cuDeviceGet(C.byref(device), C.c_int(torch.cuda.current_device())), "device")
    check(library().cuDevicePrimaryCtxRetain(C.byref(context), device), "context")
    return context


def enter() -> None:
    """Makes the context this thread's, which may have used no CUDA yet."""
    check(library().cuCtxSetCurrent(primary_context()), "context")


def load(name: str, ptx: str, slots: Sequence[int]) -> Function:
    """The entry of that name in a PTX text. BenchmarkError has the driver's message."""
    enter()
    log = C.create_string_buffer(8192)
    options = (C.c_int * 2)(ERROR_LOG, ERROR_LOG_BYTES)
    given = (C.c_void_p * 2)(C.addressof(log), len(log))
    module, function = C.c_void_p(), C.c_void_p()
    result = library().cuModuleLoadDataEx(
        C.byref(module), C.c_char_p(ptx.encode()), C.c_uint(2), options, given
    )
    check(result, f"{name}: {log.value.decode(errors='replace')}")
    found = library().cuModuleGetFunction(C.byref(function), module, C.c_char_p(name.encode()))
    check(found, name)
    attributes = {}
    for what, number in ATTRIBUTES.items():
        value = C.c_int()
        check(library().cuFuncGetAttribute(C.byref(value), C.c_int(number), function), name)
        attributes[what] = value.value
    return Function(name, function, tuple(slots), attributes)


def resident_groups(function: Function, threads: int) -> int:
    """Threadgroups of so many threads that a core holds at once."""
    count = C.c_int()
    ask = library().cuOccupancyMaxActiveBlocksPerMultiprocessor
    check(ask(C.byref(count), function.handle, C.c_int(threads), C.c_size_t(0)), function.name)
    return count.value


def launch(
    function: Function,
    grid: int,
    threads: int,
    addresses: Sequence[int],
    values: Mapping[int, bytes],
    stream: int,
) -> None:
    """Asks for a launch on the stream: addresses of buffers by index, bytes by index."""
    enter()
    arguments = Arguments()
    for i, address in enumerate(addresses):
        arguments.buffers[i] = address
    for i, data in values.items():
        slot = arguments.values[function.slots.index(i)]
        C.memmove(slot, data, len(data))
    parameters = (C.c_void_p * 1)(C.addressof(arguments))
    one, none = C.c_uint(1), C.c_void_p()
    size = (C.c_uint(grid), one, one, C.c_uint(threads), one, one, C.c_uint(0))
    result = library().cuLaunchKernel(function.handle, *size, C.c_void_p(stream), parameters, none)
    check(result, f"launching {function.name} as {grid} threadgroups of {threads}")
