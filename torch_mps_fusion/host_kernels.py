"""Compiles and watches the kernels of CPU tensors: what csrc/host asks of Python.

The ops run `packed` and `core` of CPU tensors in `metal_host`, from the shader texts that the
extension carries. This module makes one library for each kernel and set of function constants, on
first use; compiling needs clang (``pip install ziglang``), running does not.

    with host_kernels.running(checked=True, seed=3, schedule="random") as launches:
        torch.ops.mps_fusion.gdn_layer(..., variant="core")
    launches[1].result.buffers["state_in"].read
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Iterator

import torch

from . import metal_host, shaders
from .metal_host import native, source

# Seconds after which a launch counts as hung; emulation is slow.
TIME_LIMIT = 600.0


@dataclasses.dataclass(frozen=True)
class Launch:
    """A launch that was recorded."""

    family: str
    kernel: str
    constants: dict[int, int]
    result: metal_host.Result


@dataclasses.dataclass(frozen=True)
class _Session:
    checked: bool
    options: metal_host.Options
    launches: list[Launch] | None
    family: str = ""


_lock = threading.Lock()
_session: _Session | None = None
_replaced: dict[str, str] = {}


@contextlib.contextmanager
def running(
    *, checked: bool = False, family: str = "", **options: object
) -> Iterator[list[Launch]]:
    """Launches of all threads in this block run with these options and are recorded.

    checked: with the checking build, which counts bytes too. options: those of
    `metal_host.Options`; family: of the launches that they are for, all others run in turn.
    Yields the list of launches, in order.
    """
    global _session
    launches: list[Launch] = []
    chosen = metal_host.Options.of(metal_host.Options(time_limit=TIME_LIMIT), options)
    before, _session = _session, _Session(checked, chosen, launches, family)
    try:
        yield launches
    finally:
        _session = before


@contextlib.contextmanager
def replaced(family: str, flat: str) -> Iterator[None]:
    """In this block the family has this flat text: a test's broken shader, say."""
    before = _replaced.get(family)
    _replace(family, flat)
    try:
        yield
    finally:
        _replace(family, before)


def _replace(family: str, flat: str | None) -> None:
    with _lock:
        _replaced.pop(family, None)
        if flat is not None:
            _replaced[family] = flat
        text.cache_clear()
        _compile.cache_clear()
    torch.ops.mps_fusion._forget_host_kernels()


def session() -> tuple[int, int, str, bytes, bytes]:
    """(checked, record, family, its MhOptions, those of others) of the launches to come."""
    s = _session
    if s is None:
        # Nothing is explored: all threads of torch take part.
        threads = max(1, min(torch.get_num_threads(), 256))
        s = _Session(False, metal_host.Options(threads=threads, time_limit=TIME_LIMIT), None)
    others = native.options(metal_host.Options(time_limit=s.options.time_limit), s.checked)
    own = native.options(s.options, s.checked)
    return int(s.checked), int(s.launches is not None), s.family, own, others


@functools.cache
def text(family: str) -> str:
    """The flat text of a family, as the extension embeds it unless it is replaced."""
    return _replaced.get(family) or torch.ops.mps_fusion._shader_text(family)


@functools.cache
def _compile(family: str, name: str, constants: str, checked: bool) -> metal_host.Kernel:
    flat = text(family)
    given = parse_constants(constants)
    values: dict[str | int, object] = {
        c.index: given.get(c.index, 0) for c in source.function_constants(flat)
    }
    library = metal_host.Library(
        f"{family}.metal", values, checked, text=flat, defines=shaders.defines(name)
    )
    return library.kernel(name)


def kernel(family: str, name: str, constants: str, checked: bool = False) -> metal_host.Kernel:
    """The kernel, compiled once; one compiler at a time. constants: "200=1,300=0", by id."""
    with _lock:
        return _compile(family, name, constants, checked)


def parse_constants(text: str) -> dict[int, int]:
    """{200: 1, 300: 0} for "200=1,300=0"."""
    pairs = (part.split("=") for part in text.split(",") if part)
    return {int(key): int(value) for key, value in pairs}


def find(family: str, name: str, constants: str, checked: int) -> tuple[int, int, str]:
    """(mh_launch, the kernel's entry, names of its buffers by index, one a line)."""
    entry = native.entry(kernel(family, name, constants, bool(checked)))
    return entry.launch, entry.entry, "\n".join(entry.names)


def report(
    family: str,
    name: str,
    constants: str,
    checked: int,
    counts: bytes,
    per_buffer: bytes,
    faults: str,
) -> None:
    """Called after a launch that is recorded or faulty; raises FaultError."""
    found = kernel(family, name, constants, bool(checked))
    s = _session
    result = native.result(found, counts, per_buffer, faults)
    if s is not None and s.launches is not None:
        s.launches.append(Launch(family, name, parse_constants(constants), result))
