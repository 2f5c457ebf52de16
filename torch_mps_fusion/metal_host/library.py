"""Libraries and kernels: what a user of metal_host calls."""

from __future__ import annotations

import ctypes as C
import functools
import re
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import abi, arguments, build, compiler, source
from .dwarf import LineTable
from .errors import CompileError, Fault, FaultError, LaunchError, Location
from .options import ORDERS, SCHEDULES, Options
from .result import BufferCounters, Counters, Result

_MAX_THREADS = 1024


@functools.cache
def _runtime() -> Any:
    library = C.CDLL(str(compiler.runtime()), mode=C.RTLD_GLOBAL)
    if library.mh_abi_version() != abi.VERSION:
        raise CompileError("the fiber runtime has another interface; clear the cache")
    return library


class Library:
    """A `.metal` file, compiled for this machine.

    path: the file; its local includes are looked for beside it and in `include_dirs`. text: its
    content, if not that of the file. constants: function constants by name or index. defines:
    preprocessor macros. checked: build with the checks (races, bounds, ...), which a launch then
    makes. metal_version: value of __METAL_VERSION__. address_spaces=False does not check
    address spaces at all. time_limit: seconds for each run
    of the compiler. Raises CompileError.
    """

    def __init__(
        self,
        path: str | Path,
        constants: Mapping[str | int, object] | None = None,
        checked: bool = False,
        *,
        text: str | None = None,
        include_dirs: Sequence[str | Path] = (),
        defines: Mapping[str, object] | None = None,
        metal_version: int = compiler.METAL_VERSION,
        address_spaces: bool = True,
        time_limit: float | None = None,
    ):
        self.path = str(path)
        self.checked = checked
        self.source = source.flatten(path, include_dirs, text)
        self._built = build.build(
            self.source,
            constants or {},
            checked=checked,
            defines=defines,
            metal_version=metal_version,
            address_spaces=address_spaces,
            time_limit=time_limit,
        )
        self.warnings = self._built.warnings
        self._code: Any = None
        self._lock = threading.Lock()

    @property
    def kernels(self) -> tuple[str, ...]:
        """Host names of the kernels."""
        return tuple(k.name for k in self._built.kernels)

    @property
    def binary(self) -> Path:
        """The shared library, for hosts that launch through runtime/abi.h."""
        return self._built.path

    def kernel(self, name: str) -> Kernel:
        """The kernel with the host name `name`. Raises LaunchError if there is none."""
        for info in self._built.kernels:
            if info.name == name:
                return Kernel(self, info)
        known = ", ".join(self.kernels) or "none"
        raise LaunchError(f"name: no kernel {name!r} in {self.path}; there are: {known}")

    def code(self) -> Any:
        """The loaded shared library."""
        with self._lock:
            if self._code is None:
                _runtime()
                self._code = C.CDLL(str(self._built.path))
            return self._code

    @functools.cached_property
    def _lines(self) -> LineTable:
        return LineTable(self._built.path)

    def _fault(self, line: str) -> Fault:
        kind, _, message = line.partition("\t")
        places: list[Location] = []

        def one(match: re.Match[str]) -> str:
            if match[1]:
                # a return address belongs to the call before it
                place = self._lines.find(int(match[1], 16) - 1)
            else:
                place = Location(match[2], int(match[3]))
            if place is None:
                return f"code +0x{match[1]}"
            places.append(place)
            return str(place)

        text = re.sub(r"@\[(?:\+([0-9a-f]+)|([^\]]*):(\d+))\]", one, message)
        return Fault(kind, text, tuple(places))


class Kernel:
    """A kernel of a library; calling it launches it."""

    def __init__(self, library: Library, info: build.KernelInfo):
        self.library = library
        self.name = info.name
        self.parameters = info.parameters
        self.max_threads = min(info.max_threads or _MAX_THREADS, _MAX_THREADS)
        code = library.code()
        self._entry = C.cast(getattr(code, f"mh_entry_{info.name}"), C.c_void_p)
        table = C.POINTER(arguments.ParamInfo).in_dll(code, f"mh_params_{info.name}")
        described = [table[i] for i in range(len(info.parameters))]
        self.buffers = arguments.buffer_params(info.parameters, described)

    def __call__(
        self,
        grid: Any,
        threadgroup: Any,
        args: Sequence[Any] | Mapping[Any, Any],
        *,
        threadgroup_memory: Any = None,
        grid_in_threads: bool = False,
        poison: Sequence[str] = (),
        options: Options | None = None,
        **more: Any,
    ) -> Result:
        """Launches the kernel and waits for it.

        grid: threadgroups, one to three numbers (threads, with edge threadgroups cut, if
        `grid_in_threads`). threadgroup: threads of each. args: buffers in the order of their
        index, or a mapping by parameter name or index: numpy arrays, torch CPU tensors, bytes, or
        numbers for constant references; written in place. threadgroup_memory: bytes of each
        [[threadgroup(i)]] parameter. poison: names of buffers whose content counts as never
        written. options, and keywords over it: see Options.

        Raises LaunchError before anything runs if an argument does not fit, and FaultError if the
        launch was found faulty.
        """
        chosen = Options.of(options, more)
        launch, keep = self._prepare(
            grid, threadgroup, args, threadgroup_memory, grid_in_threads, poison, chosen
        )
        counts = abi.Counts()
        per_buffer = (abi.BufferCounts * max(1, launch.buffer_count))()
        text = C.create_string_buffer(65536)
        begin = time.perf_counter()
        faults = _runtime().mh_launch(C.byref(launch), C.byref(counts), per_buffer, text, len(text))
        result = self._result(counts, per_buffer, time.perf_counter() - begin)
        del keep
        if faults:
            lines = text.value.decode(errors="replace").splitlines()
            raise FaultError([self.library._fault(line) for line in lines], result)
        return result

    def _result(self, counts: abi.Counts, per_buffer: Any, seconds: float) -> Result:
        names = list(Counters.__dataclass_fields__)
        buffers = None
        if self.library.checked:
            fields = list(BufferCounters.__dataclass_fields__)
            buffers = {
                p.name: BufferCounters(*(getattr(per_buffer[p.index], f) for f in fields))
                for p in self.buffers
            }
        return Result(
            counts.trace,
            Counters(*(getattr(counts, n) for n in names)),
            buffers,
            counts.started,
            counts.finished,
            counts.lost,
            seconds,
        )

    def _prepare(
        self,
        grid: Any,
        threadgroup: Any,
        args: Any,
        threadgroup_memory: Any,
        grid_in_threads: bool,
        poison: Sequence[str],
        options: Options,
    ) -> tuple[abi.Launch, Any]:
        size = arguments.dimensions("threadgroup", threadgroup, self.max_threads)
        extent = arguments.dimensions("grid", grid, 2**32 - 1)
        groups = extent
        if grid_in_threads:
            groups = tuple(-(-a // b) for a, b in zip(extent, size, strict=True))  # type: ignore
        total = groups[0] * groups[1] * groups[2] * size[0] * size[1] * size[2]
        if total >= 2**32:
            raise LaunchError(f"grid: {total} threads are too many, the limit is {2**32 - 1}")
        bound = arguments.bind(self.buffers, args)
        locals_ = arguments.local_sizes(
            self.parameters, threadgroup_memory, options.threadgroup_limit
        )
        known = [p.name for p in self.buffers]
        if isinstance(poison, str):
            poison = [poison]
        for name in poison:
            if name not in known:
                raise LaunchError(f"poison: {name!r} is no buffer; there are: {', '.join(known)}")
        for flag in ("preempt", "stale", "count_only"):
            if getattr(options, flag) and not self.library.checked:
                raise LaunchError(f"{flag}: needs a library built with checked=True")
        if poison and not self.library.checked:
            raise LaunchError("poison: needs a library built with checked=True")
        if options.threads > 1 and self.library.checked:
            raise LaunchError("threads: a checked library runs on one OS thread")
        slots = max([p.index for p in self.buffers], default=-1) + 1
        buffers = (abi.Buffer * max(1, slots))()
        for b, p in zip(bound, sorted(self.buffers, key=lambda p: p.index), strict=True):
            if b.address and buffers[p.index].data:
                raise LaunchError(f"args: {p} is given, and so is another of the same index")
            if b.address:  # of two optional parameters with one index, one may be switched off
                buffers[p.index] = abi.Buffer(b.address, b.bytes, b.name.encode(), b.name in poison)
        sizes = (C.c_uint32 * max(1, len(locals_)))(*locals_)
        launch = abi.Launch(
            self._entry,
            self._entry,
            (C.c_uint32 * 3)(*groups),
            (C.c_uint32 * 3)(*size),
            (C.c_uint32 * 3)(*(extent if grid_in_threads else (0, 0, 0))),
            slots,
            buffers,
            len(locals_),
            sizes,
            native_options(options, self.library.checked),
        )
        return launch, (bound, buffers, sizes)


def native_options(o: Options, checked: bool) -> abi.Options:
    """Options as a launch of a library takes them."""
    check = 0 if not checked else 1 if o.count_only else 2
    return abi.Options(
        seed=o.seed,
        policy=list(SCHEDULES).index(o.schedule),
        order=ORDERS.index(o.order),
        residency=o.residency,
        preempt=o.preempt,
        stale=o.stale,
        lost=o.lost,
        lost_within=o.lost_within,
        threads=o.threads,
        check=check,
        spin_limit=o.spin_limit,
        time_limit_ms=int(o.time_limit * 1000),
        threadgroup_limit=o.threadgroup_limit,
        stack_kb=-(-o.stack // 1024),
        allow_simdgroup_spin=o.allow_simdgroup_spin,
        allow_inactive_lanes=o.allow_inactive_lanes,
    )
