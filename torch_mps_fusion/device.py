"""What the planner knows of devices: a table, always an argument, and one `current`.

The table is csrc/plan/devices.cpp, where the sources of its figures stand; several are unverified,
none was measured by this project.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from . import _C  # noqa: F401  (its import registers the ops)


@dataclass(frozen=True)
class DeviceSpec:
    """One device. bandwidth in GB/s (nominal), clock in GHz (for estimates), msl 320 for Metal 3.2,
    threadgroup_memory in bytes; `lanes` is the lane map of packed weights. With more rows than
    `row_threshold` the projections are aten products; no dispatch of ours is planned to take
    longer than `dispatch_limit_us`, by estimate. Calls of more than `chunk_rows` rows run in
    chunks; `working_set` is what the device recommends to have in memory, in bytes (0: unknown).
    """

    name: str
    cores: int
    bandwidth: float
    clock: float
    msl: int
    threadgroup_memory: int
    lanes: str
    row_threshold: int
    dispatch_limit_us: float
    chunk_rows: int
    working_set: int

    @property
    def weight_format(self) -> str:
        """The packed format that this device takes."""
        return f"tiles16-{self.lanes}"


def _from_line(line: str) -> DeviceSpec:
    fields = line.split("\t")
    name, cores, bandwidth, clock, msl, memory, lanes, threshold, limit, chunk, working_set = fields
    return DeviceSpec(
        name,
        int(cores),
        float(bandwidth),
        float(clock),
        int(msl),
        int(memory),
        lanes,
        int(threshold),
        float(limit),
        int(chunk),
        int(working_set),
    )


@cache
def table() -> tuple[DeviceSpec, ...]:
    """All devices that can be planned for."""
    return tuple(map(_from_line, torch.ops.mps_fusion._devices().splitlines()))


def names() -> list[str]:
    return [spec.name for spec in table()]


def find(text: str) -> DeviceSpec:
    """The device of that name, case and spaces aside, or with changes: "M1 Max;cores=24".

    What can be changed: cores, bandwidth, msl, threadgroup_memory, row_threshold,
    dispatch_limit_us, chunk_rows, working_set_mb. ValueError lists the devices that exist.
    """
    return _from_line(torch.ops.mps_fusion._parse_device(text).rstrip("\n"))


def current(device: str | torch.device = "mps") -> DeviceSpec:
    """What stands for a torch device: metal_host for cpu, the GPU at hand for mps.

    An Apple GPU that the table does not know has the smallest chip's figures.
    """
    line = torch.ops.mps_fusion._current_device(torch.device(device).type)
    return _from_line(line.rstrip("\n"))
