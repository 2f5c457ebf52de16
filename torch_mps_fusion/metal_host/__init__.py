"""Runs Metal compute shaders on this machine, checks them and races them.

    from torch_mps_fusion.metal_host import Library
    library = Library("scan.metal", constants={"tiles": 4}, checked=True)
    result = library.kernel("scan")(grid, threadgroup, [x, y], seed=7, schedule="random")

See README.md in this folder.
"""

from .errors import (
    FAULT_KINDS,
    CompileError,
    Fault,
    FaultError,
    LaunchError,
    Location,
    MetalHostError,
)
from .library import Kernel, Library
from .options import SCHEDULES, Options
from .result import BufferCounters, Counters, Result

__all__ = [
    "FAULT_KINDS",
    "SCHEDULES",
    "BufferCounters",
    "CompileError",
    "Counters",
    "Fault",
    "FaultError",
    "Kernel",
    "LaunchError",
    "Library",
    "Location",
    "MetalHostError",
    "Options",
    "Result",
]
