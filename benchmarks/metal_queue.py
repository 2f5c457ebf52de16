"""Our programs on a command queue of our own, on a Mac: times from command-buffer start and end.

Programs are those of the planner, kernels the texts that the extension embeds, run through pyobjc
on buffers of our own: nothing of PyTorch's stream or allocator is in the timed interval. Results
can be read back and compared with the op's, bit by bit.
"""

from __future__ import annotations

import ctypes
import importlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from torch_mps_fusion import host_kernels, plan, shaders
from torch_mps_fusion.metal_host import source

from .errors import BenchmarkError, DeadlineExceeded, TimerMissing

COMPLETED, FAILED = 4, 5  # MTLCommandBufferStatus
STORAGE_SHARED = 0
MATH_SAFE = 0
LANGUAGES = {310: (3 << 16) + 1, 320: (3 << 16) + 2}  # MTLLanguageVersion3_1, 3_2
DATA_UINT, DATA_BOOL = 33, 53  # MTLDataType
BARRIER_BUFFERS = 1
INDIRECT_CONCURRENT_DISPATCH = 1 << 5  # MTLIndirectCommandTypeConcurrentDispatch


def metal() -> ModuleType:
    """pyobjc's Metal. TimerMissing names what is missing."""
    try:
        return importlib.import_module("Metal")
    except ImportError:
        raise TimerMissing(
            "a GPU time of an Apple GPU needs a Mac and pyobjc-framework-Metal "
            "(pip install 'torch-mps-fusion[bench]' there): our own command queue is reached "
            "through it"
        ) from None


def language(text: str) -> int:
    """3.2 for texts that use its coherent pointers, else 3.1."""
    return LANGUAGES[320 if re.search(r"\bcoherent\b", text) else 310]


def set_constant(values: Any, data: bytes, kind: int, index: int) -> None:
    """setConstantValue:type:atIndex:, whose plain pointer pyobjc does not convert."""
    objc = importlib.import_module("objc")
    runtime = ctypes.CDLL("/usr/lib/libobjc.dylib")
    runtime.sel_registerName.restype = ctypes.c_void_p
    selector = runtime.sel_registerName(b"setConstantValue:type:atIndex:")
    send = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_ulong
    )(("objc_msgSend", runtime))
    send(objc.pyobjc_id(values), selector, data, kind, index)


@dataclass
class Encoded:
    """A program with its pipelines and buffers: what one call encodes."""

    program: plan.Program
    pipelines: list[Any]
    buffers: list[Any]  # by the program's buffer index

    def encode(self, encoder: Any, dispatches: slice = slice(None)) -> None:
        """Sets and dispatches everything; a barrier before the first, as after earlier work."""
        chosen = list(zip(self.program.dispatches, self.pipelines, strict=True))[dispatches]
        for i, (d, pipeline) in enumerate(chosen):
            if d.barrier or i == 0:
                encoder.memoryBarrierWithScope_(BARRIER_BUFFERS)
            encoder.setComputePipelineState_(pipeline)
            for a in d.arguments:
                if isinstance(a, plan.View):
                    buffer = self.buffers[a.buffer]
                    encoder.setBuffer_offset_atIndex_(buffer, a.offset, a.index)
                else:
                    encoder.setBytes_length_atIndex_(a[1], len(a[1]), a[0])
            encoder.dispatchThreadgroups_threadsPerThreadgroup_(d.grid, (d.threads, 1, 1))

    def read(self, name: str) -> bytes:
        """The content of a buffer by its name in the program."""
        index = next(i for i, b in enumerate(self.program.buffers) if b.name == name)
        size = self.program.buffers[index].bytes
        return bytes(self.buffers[index].contents().as_buffer(size)[:size])


class MetalQueue:
    """Pipelines, buffers and a queue of one device; also the clock of what is encoded here."""

    gpu = True
    name = "command-buffer GPU start and end, own queue"

    def __init__(self, deadline: float = 60.0) -> None:
        self.metal = metal()
        self.device = self.metal.MTLCreateSystemDefaultDevice()
        if self.device is None:
            raise TimerMissing("Metal has no device here")
        self.queue = self.device.newCommandQueue()
        self.deadline = deadline
        self._pipelines: dict[tuple, Any] = {}

    def pipeline(
        self,
        family: str,
        kernel: str,
        constants: Mapping[int, int],
        text: str | None = None,
        indirect: bool = False,
    ) -> Any:
        """A pipeline of one of our families, or of a kernel in another text."""
        key = (family, kernel, tuple(sorted(constants.items())), indirect)
        if key not in self._pipelines:
            self._pipelines[key] = self._make(family, kernel, constants, text, indirect)
        return self._pipelines[key]

    def _make(
        self,
        family: str,
        kernel: str,
        constants: Mapping[int, int],
        text: str | None,
        indirect: bool,
    ) -> Any:
        defines = (
            ""
            if text
            else "".join(
                f"#define {name} {value}\n" for name, value in shaders.defines(kernel).items()
            )
        )
        flat = defines + (text or host_kernels.text(family))
        options = self.metal.MTLCompileOptions.alloc().init()
        options.setLanguageVersion_(language(flat))
        if hasattr(options, "setMathMode_"):  # macOS 15
            options.setMathMode_(MATH_SAFE)
        else:
            options.setFastMathEnabled_(False)
        library, error = self.device.newLibraryWithSource_options_error_(flat, options, None)
        self._refuse(library, error, family)
        values = self.metal.MTLFunctionConstantValues.alloc().init()
        for c in source.function_constants(flat):
            value = constants.get(c.index, 0)
            boolean = c.type == "bool"
            data = bytes([value != 0]) if boolean else value.to_bytes(4, "little")
            kind = DATA_BOOL if boolean else DATA_UINT
            set_constant(values, data, kind, c.index)
        function, error = library.newFunctionWithName_constantValues_error_(kernel, values, None)
        self._refuse(function, error, kernel)
        if not indirect:
            made, error = self.device.newComputePipelineStateWithFunction_error_(function, None)
        else:
            descriptor = self.metal.MTLComputePipelineDescriptor.alloc().init()
            descriptor.setComputeFunction_(function)
            descriptor.setSupportIndirectCommandBuffers_(True)
            make = self.device.newComputePipelineStateWithDescriptor_options_reflection_error_
            made, error = make(descriptor, 0, None, None)
        self._refuse(made, error, kernel)
        return made

    @staticmethod
    def _refuse(made: Any, error: Any, what: str) -> None:
        if made is None:
            said = error.localizedDescription() if error is not None else "Metal gave no message"
            raise BenchmarkError(f"{what}: {said}")

    def buffer(self, size: int, data: bytes | memoryview = b"") -> Any:
        """Shared memory: `data`, then zeros."""
        made = self.device.newBufferWithLength_options_(max(16, size), STORAGE_SHARED)
        if made is None:
            raise BenchmarkError(f"Metal has no buffer of {size} bytes")
        view = made.contents().as_buffer(max(16, size))
        view[: len(data)] = data
        view[len(data) :] = bytes(len(view) - len(data))
        return made

    def encoded(
        self, program: plan.Program, given: Mapping[str, Tensor | bytes], indirect: bool = False
    ) -> Encoded:
        """The program over copies of the given tensors, by buffer name; buffers that share storage
        share memory, others are zeroed scratch. Products of aten have no place here."""
        if any(d.product for d in program.dispatches):
            raise BenchmarkError("program: products of aten cannot run on a queue of our own")
        pipelines = [
            self.pipeline(d.family, d.kernel, d.constants, indirect=indirect)
            for d in program.dispatches
        ]
        given = {**program.tables, **given}
        storages: dict[int, Any] = {}
        for b in program.buffers:
            data = given.get(b.name)
            if b.storage not in storages or data is not None:
                size = max(x.bytes for x in program.buffers if x.storage == b.storage)
                storages[b.storage] = self.buffer(size, b"" if data is None else memory_bytes(data))
        return Encoded(program, pipelines, [storages[b.storage] for b in program.buffers])

    def seconds(self, work: Any, calls: int) -> float:
        """GPU seconds of one call: `work.encode` into one encoder, `calls` times."""
        start, end = self.interval(lambda encoder: [work.encode(encoder) for _ in range(calls)])
        return (end - start) / calls

    def interval(self, encode: Any) -> tuple[float, float]:
        """GPU start and end of a command buffer with one encoder. Every wait is bounded."""
        buffer = self.queue.commandBuffer()
        encoder = buffer.computeCommandEncoder()
        encode(encoder)
        encoder.endEncoding()
        return self.finish(buffer)

    def finish(self, buffer: Any) -> tuple[float, float]:
        """Commits; GPU start and end in seconds."""
        buffer.commit()
        limit = time.monotonic() + self.deadline
        while buffer.status() < COMPLETED:
            if time.monotonic() > limit:
                raise DeadlineExceeded(f"the GPU was not done after {self.deadline:g} s")
            time.sleep(0)
        if buffer.status() == FAILED or buffer.error() is not None:
            raise BenchmarkError(f"command buffer: {buffer.error().localizedDescription()}")
        return buffer.GPUStartTime(), buffer.GPUEndTime()

    def intervals(self, work: Encoded) -> list[tuple[str, float, float]]:
        """(stage, start, end) of every dispatch, each in a command buffer of its own, committed
        together. A diagnostic: encoders and buffers of their own cost time."""
        buffers = []
        for i, d in enumerate(work.program.dispatches):
            buffer = self.queue.commandBuffer()
            encoder = buffer.computeCommandEncoder()
            work.encode(encoder, slice(i, i + 1))
            encoder.endEncoding()
            buffers.append((d.stage, buffer))
        for _, buffer in buffers[:-1]:
            buffer.commit()
        self.finish(buffers[-1][1])
        return [(stage, b.GPUStartTime(), b.GPUEndTime()) for stage, b in buffers]

    def indirect(self, work: Encoded) -> Any:
        """The program as an indirect command buffer, which has `encode` as a program has. Inline
        bytes become buffers; such a buffer has no offsets beyond 32 bits."""
        descriptor = self.metal.MTLIndirectCommandBufferDescriptor.alloc().init()
        descriptor.setCommandTypes_(INDIRECT_CONCURRENT_DISPATCH)
        descriptor.setInheritBuffers_(False)
        descriptor.setInheritPipelineState_(False)
        descriptor.setMaxKernelBufferBindCount_(31)
        make = self.device.newIndirectCommandBufferWithDescriptor_maxCommandCount_options_
        count = len(work.program.dispatches)
        commands = make(descriptor, count, STORAGE_SHARED)
        used = list(work.buffers)
        for i, (d, pipeline) in enumerate(
            zip(work.program.dispatches, work.pipelines, strict=True)
        ):
            command = commands.indirectComputeCommandAtIndex_(i)
            command.setComputePipelineState_(pipeline)
            for a in d.arguments:
                if isinstance(a, plan.View):
                    buffer, offset, index = work.buffers[a.buffer], a.offset, a.index
                else:
                    buffer, offset, index = self.buffer(len(a[1]), a[1]), 0, a[0]
                    used.append(buffer)
                command.setKernelBuffer_offset_atIndex_(buffer, offset, index)
            if d.barrier or i == 0:
                command.setBarrier()
            command.concurrentDispatchThreadgroups_threadsPerThreadgroup_(d.grid, (d.threads, 1, 1))
        return Indirect(work, commands, count, used)


@dataclass
class Indirect:
    """Commands that were encoded once. `used`: buffers that must be resident."""

    work: Encoded
    commands: Any
    count: int
    used: list[Any]

    def encode(self, encoder: Any) -> None:
        for buffer in self.used:
            encoder.useResource_usage_(buffer, 3)  # read and write
        encoder.executeCommandsInBuffer_withRange_(self.commands, (0, self.count))

    def read(self, name: str) -> bytes:
        return self.work.read(name)


def memory_bytes(data: Tensor | bytes) -> bytes:
    """A tensor's memory from its first element on; its strides are the program's business."""
    if isinstance(data, bytes):
        return data
    span = sum((n - 1) * s for n, s in zip(data.shape, data.stride(), strict=True)) + 1
    flat = data.detach().as_strided((span,), (1,)).cpu().contiguous()
    return flat.view(torch.uint8).numpy().tobytes()
