"""A Metal for `benchmarks.metal_queue` that runs kernels in metal_host: pyobjc's names, strictly.

Work happens at commit, an encoder must be ended before it, time is a counter of dispatches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from torch_mps_fusion.metal_host import Library, MetalHostError

COMPLETED, FAILED = 4, 5


class Plain:
    """An object of alloc().init() whose setters are kept by name."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.constants: dict[int, int] = {}

    @classmethod
    def alloc(cls) -> Plain:
        return cls()

    def init(self) -> Plain:
        return self

    def __getattr__(self, name: str) -> Callable[[Any], None]:
        if not name.startswith("set"):
            raise AttributeError(name)
        return lambda value: self.values.__setitem__(name, value)


class Failure:
    def __init__(self, text: str) -> None:
        self.text = text

    def localizedDescription(self) -> str:
        return self.text


class Buffer:
    def __init__(self, size: int) -> None:
        self.whole = np.zeros(size + 16, np.uint8)
        start = -self.whole.ctypes.data % 16
        self.data = self.whole[start : start + size]

    def contents(self) -> Buffer:
        return self

    def as_buffer(self, size: int) -> memoryview:
        assert size <= len(self.data)
        return memoryview(self.data)[:size]


class Encoder:
    def __init__(self) -> None:
        self.steps: list[Callable[[], None]] = []
        self.pipeline: Any = None
        self.bound: dict[int, Any] = {}
        self.resident: set[int] = set()
        self.ended = False

    def memoryBarrierWithScope_(self, scope: int) -> None:
        assert scope == 1

    def setComputePipelineState_(self, pipeline: Any) -> None:
        self.pipeline = pipeline

    def setBuffer_offset_atIndex_(self, buffer: Buffer, offset: int, index: int) -> None:
        self.bound[index] = memoryview(buffer.data[offset:])

    def setBytes_length_atIndex_(self, data: bytes, length: int, index: int) -> None:
        assert len(data) == length <= 4096
        self.bound[index] = data

    def dispatchThreadgroups_threadsPerThreadgroup_(self, grid: tuple, threads: tuple) -> None:
        assert not self.ended and len(grid) == len(threads) == 3
        kernel, bound = self.pipeline, dict(self.bound)
        wanted = {p.index for p in kernel.buffers}
        given = {i: b for i, b in bound.items() if i in wanted}
        self.steps.append(lambda: kernel(grid, threads[0], given))

    def useResource_usage_(self, buffer: Buffer, usage: int) -> None:
        assert usage == 3
        self.resident.add(id(buffer))

    def executeCommandsInBuffer_withRange_(self, commands: Any, where: tuple[int, int]) -> None:
        for command in commands.commands[where[0] : where[0] + where[1]]:
            assert command.used <= self.resident
            self.steps += command.steps

    def endEncoding(self) -> None:
        self.ended = True


class Command(Encoder):
    """Of an indirect command buffer: everything is a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.used: set[int] = set()

    def setKernelBuffer_offset_atIndex_(self, buffer: Buffer, offset: int, index: int) -> None:
        self.used.add(id(buffer))
        self.setBuffer_offset_atIndex_(buffer, offset, index)

    def setBarrier(self) -> None: ...

    def concurrentDispatchThreadgroups_threadsPerThreadgroup_(self, grid: tuple, n: tuple) -> None:
        self.dispatchThreadgroups_threadsPerThreadgroup_(grid, n)


class Commands:
    def __init__(self, count: int) -> None:
        self.commands = [Command() for _ in range(count)]

    def indirectComputeCommandAtIndex_(self, index: int) -> Command:
        return self.commands[index]


class CommandBuffer:
    def __init__(self, device: Device) -> None:
        self.device, self.encoder, self.state = device, Encoder(), 0
        self.start = self.end = 0.0

    def computeCommandEncoder(self) -> Encoder:
        return self.encoder

    def commit(self) -> None:
        assert self.state == 0 and self.encoder.ended
        self.start = self.device.clock
        for step in self.encoder.steps:
            step()
            self.device.clock += 1e-6
        self.end, self.state = self.device.clock, self.device.outcome

    def status(self) -> int:
        return self.state

    def error(self) -> Failure | None:
        return Failure("the fake says no") if self.state == FAILED else None

    def GPUStartTime(self) -> float:
        return self.start

    def GPUEndTime(self) -> float:
        return self.end


class Device:
    def __init__(self) -> None:
        self.clock, self.outcome = 1.0, COMPLETED

    def newCommandQueue(self) -> Device:
        return self

    def commandBuffer(self) -> CommandBuffer:
        return CommandBuffer(self)

    def newBufferWithLength_options_(self, size: int, options: int) -> Buffer:
        assert options == 0 and size > 0
        return Buffer(size)

    def newLibraryWithSource_options_error_(self, text: str, options: Plain, _: None) -> tuple:
        assert {"setLanguageVersion_", "setMathMode_"} <= set(options.values)
        return Text(text), None

    def newComputePipelineStateWithFunction_error_(self, function: Any, _: None) -> tuple:
        return function, None

    def newComputePipelineStateWithDescriptor_options_reflection_error_(
        self, descriptor: Plain, options: int, reflection: None, error: None
    ) -> tuple:
        assert descriptor.values["setSupportIndirectCommandBuffers_"]
        return descriptor.values["setComputeFunction_"], None

    def newIndirectCommandBufferWithDescriptor_maxCommandCount_options_(
        self, descriptor: Plain, count: int, options: int
    ) -> Commands:
        assert descriptor.values["setInheritBuffers_"] is False
        return Commands(count)


class Text:
    def __init__(self, text: str) -> None:
        self.text = text

    def newFunctionWithName_constantValues_error_(
        self, name: str, values: Plain, _: None
    ) -> tuple[Any, Failure | None]:
        try:
            return Library("fake.metal", values.constants, text=self.text).kernel(name), None
        except MetalHostError as error:
            return None, Failure(str(error))


class Metal:
    """The module."""

    MTLCompileOptions = MTLFunctionConstantValues = Plain
    MTLComputePipelineDescriptor = MTLIndirectCommandBufferDescriptor = Plain

    def __init__(self) -> None:
        self.device = Device()

    def MTLCreateSystemDefaultDevice(self) -> Device:
        return self.device


def set_constant(values: Plain, data: bytes, kind: int, index: int) -> None:
    assert len(data) == {53: 1, 33: 4}[kind]
    values.constants[index] = int.from_bytes(data, "little")
