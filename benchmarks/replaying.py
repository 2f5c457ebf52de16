"""A program as a recorded list: dispatches over memory of our own, run by metal_host.

The same thing that `metal_queue` does on a Mac, here for bits.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from torch_mps_fusion import host_kernels, plan
from torch_mps_fusion.metal_host import Kernel


class RecordedList:
    """Kernels are looked up once; buffers that share storage share memory; scratch is zeroed."""

    def __init__(self, program: plan.Program, given: Mapping[str, bytes]) -> None:
        self.program = program
        self.kernels = [kernel_of(d) for d in program.dispatches]
        self.storages: dict[int, np.ndarray] = {}
        for b in program.buffers:
            size = max(16, *(x.bytes for x in program.buffers if x.storage == b.storage))
            self.storages.setdefault(b.storage, np.zeros(size + 16, np.uint8))
        self.restore({**program.tables, **given})

    def restore(self, given: Mapping[str, bytes]) -> None:
        """Writes tensors by buffer name, as before a first replay."""
        for b in self.program.buffers:
            if b.name in given:
                data = np.frombuffer(given[b.name], np.uint8)
                self.memory(b)[: len(data)] = data

    def memory(self, buffer: plan.Buffer) -> np.ndarray:
        """From an address that is a multiple of 16."""
        whole = self.storages[buffer.storage]
        return whole[-whole.ctypes.data % 16 :]

    def replay(self) -> None:
        for d, kernel in zip(self.program.dispatches, self.kernels, strict=True):
            arguments: dict[str | int, object] = {}
            for a in d.arguments:
                if not isinstance(a, plan.View):
                    arguments[a[0]] = a[1]
                else:
                    memory = self.memory(self.program.buffers[a.buffer])
                    arguments[a.index] = memoryview(memory[a.offset :])
            kernel(d.grid, d.threads, arguments)

    def read(self, name: str) -> bytes:
        buffer = next(b for b in self.program.buffers if b.name == name)
        return self.memory(buffer)[: buffer.bytes].tobytes()


def kernel_of(d: plan.Dispatch) -> Kernel:
    constants = ",".join(f"{i}={v}" for i, v in sorted(d.constants.items()))
    return host_kernels.kernel(d.family, d.kernel, constants)
