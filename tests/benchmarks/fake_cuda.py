"""CUDA for the benchmarks without a GPU: tensors stay on the CPU, kernels run in metal_host.

`install` replaces what the commands call of torch.cuda, and the driver that loads probes. Times
mean nothing. `Driver` takes the launch's parameter apart as a kernel would.
"""

from __future__ import annotations

import contextlib
import ctypes as C
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks import cuda_driver, cuda_probes, facts, layers, probes
from benchmarks.commands import gaps, layer, projection, replay
from torch_mps_fusion import cuda_kernels
from torch_mps_fusion import device as devices
from torch_mps_fusion.metal_host import Library, source

WARM_UP = 3


class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end.at - self.at)


class Stream:
    cuda_stream = 7

    def wait_stream(self, other: Stream) -> None:
        assert isinstance(other, Stream)


def capture(work: Callable[[], Any]) -> Any:
    for _ in range(WARM_UP):
        work()
    return SimpleNamespace(replay=work)


class Driver:
    """libcuda. Tensors whose addresses are launched on are those in `memory`."""

    def __init__(self) -> None:
        self.memory: dict[int, torch.Tensor] = {}
        self.functions: list[Any] = []
        self.launches: list[tuple[str, int, int]] = []

    def cuDeviceGet(self, device: Any, index: C.c_int) -> int:
        device._obj.value = index.value
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: C.c_int) -> int:
        context._obj.value = 11
        return 0

    def cuCtxSetCurrent(self, context: C.c_void_p) -> int:
        return 0 if context.value == 11 else 201

    def cuGetErrorName(self, result: C.c_int, name: Any) -> int:
        name._obj.value = b"CUDA_ERROR_OF_THE_FAKE"
        return 0

    def cuModuleLoadDataEx(
        self, module: Any, ptx: C.c_char_p, count: C.c_uint, options: Any, given: Any
    ) -> int:
        assert (count.value, list(options)) == (2, [5, 6]) and given[1] == 8192
        name, constants, slots = (ptx.value or b"").decode().split("|")
        if name == "broken":
            C.memmove(given[0], b"line 3: no", 11)
            return 218
        values = dict(map(int, pair.split("=")) for pair in constants.split(",") if pair)
        built = Library(probes.SHADERS / f"{name}.metal", values).kernel(name)
        self.functions.append((built, list(map(int, slots.split()))))
        module._obj.value = len(self.functions)
        return 0

    def cuModuleGetFunction(self, function: Any, module: C.c_void_p, name: C.c_char_p) -> int:
        function._obj.value = module.value
        return 0 if self.functions[module.value - 1][0].name == name.value.decode() else 500

    def cuFuncGetAttribute(self, value: Any, attribute: C.c_int, function: C.c_void_p) -> int:
        value._obj.value = {0: 1024, 1: 64, 3: 0, 4: 32}[attribute.value]
        return 0

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(
        self, count: Any, function: C.c_void_p, threads: C.c_int, dynamic: C.c_size_t
    ) -> int:
        count._obj.value = 2048 // threads.value
        return 0

    def cuLaunchKernel(self, function: C.c_void_p, *rest: Any) -> int:
        *sizes, dynamic, stream, parameters, extra = rest
        grid, threads = sizes[0].value, sizes[3].value
        assert all(sizes[i].value == 1 for i in (1, 2, 4, 5)) and dynamic.value == 0
        assert stream.value == Stream.cuda_stream and extra.value is None
        kernel, slots = self.functions[function.value - 1]
        raw = C.string_at(parameters[0], 384 + 4 * 128)
        given: dict[str | int, Any] = {}
        for p in kernel.buffers:
            if p.index in slots:
                given[p.index] = raw[384 + 128 * slots.index(p.index) :][:128]
            else:
                address = int.from_bytes(raw[8 * p.index :][:8], "little")
                given[p.index] = memoryview(self.memory[address].numpy())
        self.launches.append((kernel.name, grid, threads))
        kernel(grid, threads, given)
        return 0


def find(family: str, name: str, constants: str, text: cuda_kernels.Text) -> tuple[str, str]:
    """No PTX, but what the driver above needs."""
    (declared,) = source.kernels(text.flat)
    slots = " ".join(str(p.index) for p in declared.parameters if p.type.endswith("&"))
    return f"{name}|{constants}|{slots}", slots


class Profile:
    """torch.profiler.profile that saw three kernels in every replay."""

    def __init__(self, activities: Any) -> None:
        self.activities = activities

    def __enter__(self) -> Profile:
        return self

    def __exit__(self, *error: object) -> None: ...

    def events(self) -> list[Any]:
        kind = torch.autograd.DeviceType.CUDA
        spans = [(10.0 * i, 10.0 * i + 8) for i in range(3 * (gaps.WARM_UP + 1))]
        host = SimpleNamespace(name="host", device_type=torch.autograd.DeviceType.CPU)
        return [host] + [
            SimpleNamespace(
                name=f"k{i}", device_type=kind, time_range=SimpleNamespace(start=a, end=b)
            )
            for i, (a, b) in enumerate(reversed(spans))
        ]


def install(patch: Any) -> Driver:
    """Everything, with a pytest monkeypatch."""
    driver, cuda = Driver(), torch.cuda
    to, supports, current = torch.Tensor.to, layers.supports, devices.current
    patch.setattr(cuda, "is_available", lambda: True)
    for name, value in {
        "Event": Event,
        "Stream": Stream,
        "_sleep": lambda cycles: None,
        "synchronize": lambda: None,
        "current_device": lambda: 0,
        "current_stream": Stream,
        "stream": stream,
    }.items():
        patch.setattr(cuda, name, value)

    def on_cpu(t: torch.Tensor, *where: Any, **keywords: Any) -> torch.Tensor:
        return to(t, *("cpu" if x == "cuda" else x for x in where), **keywords)

    def supported(variant: str, *, device: str, **rest: Any) -> Any:
        where = "mps" if variant == "native" else "cpu"
        return supports(variant, device=where if device == "cuda" else device, **rest)

    def buffer(self: cuda_probes.CudaLauncher, data: np.ndarray) -> torch.Tensor:
        made = real_buffer(self, data)
        driver.memory[made.data_ptr()] = made
        return made

    real_buffer = cuda_probes.CudaLauncher.buffer
    patch.setattr(cuda_probes.CudaLauncher, "buffer", buffer)
    patch.setattr(torch.Tensor, "to", on_cpu)
    patch.setattr(layers, "supports", supported)
    patch.setattr(devices, "current", lambda device="mps": current("cpu"))
    patch.setattr(cuda_driver, "library", lambda: driver)
    patch.setattr(cuda_kernels, "find", find)
    patch.setattr(facts, "_cuda", lambda: {"name": "a fake GPU"})
    patch.setattr(facts, "cache_bytes", lambda kind: 1 << 12)
    patch.setattr(layer, "COLD_BYTES", {"cuda": 1})
    patch.setattr(layer, "COPY_BYTES", 1 << 12)
    patch.setattr(torch.profiler, "profile", Profile)
    for module in (cuda_probes, gaps, layer, projection, replay):
        patch.setattr(module, "capture", capture)
    cuda_driver.primary_context.cache_clear()
    cuda_probes._loaded.cache_clear()
    return driver


@contextlib.contextmanager
def stream(of: Stream) -> Iterator[None]:
    yield
