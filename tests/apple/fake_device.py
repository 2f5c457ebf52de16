"""A fake "mps" device for torch on Linux: Metal's objects over metal_host, torch's stream and
allocator, strict about everything that Apple's documentation forbids.

`load()` makes tensors on "mps" work in this process, `load_extension()` then adds csrc/mps,
unchanged, or with replacements (a mutant): the last one loaded serves. Needs GCC's Objective-C
runtime and the blocks runtime (Debian: libobjc-12-dev for GCC 12, libblocksruntime-dev).
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import functools
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import cache
import clang
import cross
import torch

from torch_mps_fusion import _C, metal_host
from torch_mps_fusion.metal_host import arguments, native

HERE = Path(__file__).parent / "fake"
EXTENSION = (
    *sorted((clang.ROOT / "csrc" / "mps").glob("*.mm")),
    clang.ROOT / "csrc" / "encoder.cpp",
    clang.ROOT / "csrc" / "shader_text.cpp",
)


class Missing(Exception):
    """Something of the machine's that the fake device needs is not installed."""


@functools.cache
def requirements() -> Path:
    """GCC's own folder, where its Objective-C headers and library are. Raises Missing."""
    version = subprocess.run(["gcc", "-dumpversion"], capture_output=True, text=True).stdout.strip()
    include = subprocess.run(
        ["gcc", "-print-file-name=include"], capture_output=True, text=True
    ).stdout.strip()
    folder = Path(include).parent
    if not (folder / "include" / "objc" / "objc.h").exists():
        raise Missing(f"GCC's Objective-C runtime: apt-get install libobjc-{version}-dev")
    if not Path("/usr/include/Block.h").exists():
        raise Missing("the blocks runtime: apt-get install libblocksruntime-dev")
    return folder


def torch_folder() -> Path:
    return Path(torch.__file__).parent


@functools.cache
def flags() -> tuple[str, ...]:
    """zig's clang for GCC's Objective-C runtime and the C++ library that torch was built with."""
    gcc = requirements()
    version = gcc.name
    triple = gcc.parent.name
    cxx = [f"/usr/include/c++/{version}", f"/usr/include/{triple}/c++/{version}"]
    include = torch_folder() / "include"
    first = [
        *cxx,
        clang.DECLARATIONS / "linux",
        clang.DECLARATIONS / "any",
        include,
        include / "torch" / "csrc" / "api" / "include",
    ]
    last = [gcc / "include", f"/usr/include/{triple}", "/usr/include"]
    target = f"{platform.machine()}-linux-gnu.{platform.libc_ver()[1]}"
    return (
        *("-target", target, "-std=c++20", "-O0", "-g0", "-fPIC", "-fexceptions"),
        *("-fno-sanitize=all", "-nostdinc++", "-ffp-contract=off"),
        *("-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"),
        "-D__MAC_15_0=150000",  # as an SDK that knows macOS 15
        *("-I", str(clang.ROOT / "csrc"), "-I", str(clang.ROOT), "-I", str(HERE)),
        *("-I", str(Path(metal_host.__file__).parent)),
        *(f for p in first for f in ("-isystem", str(p))),
        *(f for p in last for f in ("-idirafter", str(p))),
    )


def compiled(source: Path, text: str | None = None) -> Path:
    """The object of a source (with `text` in its place), from the cache if nothing changed.

    Raises RuntimeError with the compiler's messages.
    """
    text = source.read_text() if text is None else text
    if source.parent == HERE:  # stands for libraries, which show what they have
        options = ["-fvisibility=default", *flags()]
        headers: tuple[str, ...] = ()
    else:
        options = ["-fvisibility=hidden", *flags()]
        headers = clang.precompiled_headers(source, text)
    if source.suffix != ".mm":
        return clang.compiled(source, text, options, headers)
    options += ["-fobjc-runtime=gcc", "-fblocks"]
    return clang.compiled(source, text, options, headers, with_cxx_personality)


def with_cxx_personality(path: Path) -> None:
    """C++ exceptions pass through Objective-C's frames: gives them C++'s personality routine."""
    names = [f"{p}__gnu_objc_personality_v0={p}__gxx_personality_v0" for p in ("", "DW.ref.")]
    command = ["objcopy", *(f for n in names for f in ("--redefine-sym", n)), str(path)]
    subprocess.run(command, check=True, timeout=clang.TIME_LIMIT)


def link(objects: Sequence[Path], out: Path, libraries: Sequence[str | Path]) -> None:
    torch_lib = torch_folder() / "lib"
    command = [
        *("g++", "-shared", "-o", out, *objects, "-Wl,-z,defs", "-Wl,-Bsymbolic"),
        *("-L", torch_lib, f"-Wl,-rpath,{torch_lib}", "-ltorch", "-ltorch_cpu", "-lc10"),
        *libraries,
        *("-L", requirements(), "-lobjc", "-lBlocksRuntime"),
    ]
    subprocess.run(list(map(str, command)), check=True, timeout=clang.TIME_LIMIT)


def linked(name: str, objects: Sequence[Path], libraries: Sequence[str | Path]) -> Path:
    """The shared library of these objects, from the cache if there."""
    key = cache.digest(*map(str, [*objects, *libraries]))
    out = cache.folder() / "linux" / f"lib{name}-{key}.so"
    return cache.made(out, lambda part: link(objects, part, libraries))


def all_compiled(sources: Sequence[Path]) -> list[Path]:
    with concurrent.futures.ThreadPoolExecutor(clang.JOBS) as pool:
        return list(pool.map(compiled, sources))


# ---------------------------------------------------------------- the shader compiler it calls

_COMPILER = ctypes.CFUNCTYPE(
    None,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_uint32,
    ctypes.POINTER(ctypes.c_char),
    ctypes.c_uint64,
)


_LIMITED = re.compile(
    r"template\s*<([^>]*)>\s*\[\[kernel,\s*max_total_threads_per_threadgroup\(([^\]]*)\)\]\]"
    r"\s*void\s+(\w+)"
)


_CONSTANT = re.compile(r"constant\s+constexpr\s+\w+\s+(\w+)\s*=\s*(\d+)\s*;")


def thread_limits(text: str, functions: Mapping[str, str]) -> dict[str, int]:
    """The largest threadgroup by host name, where a template's attribute gives it.

    functions: by host name the instance, "core<float, 128, 128, 2>".
    """
    found = {}
    constants = _CONSTANT.findall(text)
    attributes = {name: (given, limit) for given, limit, name in _LIMITED.findall(text)}
    for host, instance in functions.items():
        name, _, values = instance.rstrip("> ").partition("<")
        if name.strip() not in attributes:
            continue
        given, limit = attributes[name.strip()]
        for parameter, value in zip(given.split(","), values.split(","), strict=True):
            limit = re.sub(rf"\b{parameter.split()[-1]}\b", value.strip(), limit)
        for constant, value in constants:
            limit = re.sub(rf"\b{constant}\b", value, limit)
        if not re.fullmatch(r"[\d\s*/+()-]+", limit):
            raise ValueError(f"thread limit of {host}: {limit}")
        found[host] = int(eval(limit.replace("/", "//")))  # digits and operators only
    return found


def described(made: metal_host.Library) -> tuple[list[metal_host.Kernel], str]:
    """The kernels of a library, and the lines that fake/kernels.cpp reads of them."""
    limits = thread_limits(made.source.text, {k.name: k.function for k in made._built.kernels})
    kernels = [made.kernel(name) for name in made.kernels]
    lines = []
    for kernel in kernels:
        entry = native.entry(kernel)
        most = limits.get(kernel.name, kernel.max_threads)
        lines.append(f"kernel {kernel.name} {entry.launch} {entry.entry} {most}")
        for p in kernel.buffers:
            flags = (p.flags & arguments.CONST, p.flags & arguments.REFERENCE, p.optional)
            bits = " ".join(str(int(bool(f))) for f in flags)
            lines.append(f"buffer {p.index} {p.size} {p.align} {bits}")
    return kernels, "\n".join(lines)


class Device:
    """The loaded fake device, and what a test asks and tells it."""

    def __init__(self, path: Path, checked: bool) -> None:
        torch.ops.load_library(str(path))
        self.ops = torch.ops.fake_mps
        self.library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        self.path = path
        self.checked = checked
        self.texts: list[str] = []  # given to the compiler
        self._kernels: list[metal_host.Kernel] = []  # kept alive for the device
        self._compile = _COMPILER(self._answer)
        self.library.fake_set_compiler(self._compile)
        options = native.options(metal_host.Options(), checked)
        self.library.fake_set_options(options)

    def _answer(
        self, text: bytes, constants: bytes, language: int, out: ctypes.Array, capacity: int
    ) -> None:
        self.texts.append(text.decode())
        pairs = (p.split("=") for p in constants.decode().split())
        values: dict[str | int, object] = {int(k): int(v) for k, v in pairs}
        try:
            made = metal_host.Library(
                "shader.metal", values, self.checked, text=text.decode(), metal_version=language
            )
            kernels, answer = described(made)
            self._kernels += kernels
        except Exception as error:  # a callback cannot raise
            answer = f"error\n{error}"
        data = answer.encode()[: capacity - 1] + b"\0"
        ctypes.memmove(out, data, len(data))

    def faults(self) -> list[str]:
        """Faults since the last call."""
        return self.ops.faults().splitlines()

    def synchronize(self) -> None:
        self.ops.synchronize()

    def reset(self) -> None:
        """After a fault: drops what is encoded and has not run, drains the pools left open."""
        self.ops.reset()

    def set_stream(self, number: int) -> None:
        """The current stream by number, as PyTorch's guard gives it; all share one queue."""
        self.ops.set_stream(number)

    def live(self, cls: str = "") -> int:
        """Objective-C objects alive, of a class or all."""
        return self.ops.live_objects(cls)

    def counters(self) -> dict[str, int]:
        names = ("libraries", "pipelines", "dispatches", "barriers")
        return dict(zip(names, self.ops.counters(), strict=True))

    def fail_pipelines(self, count: int) -> None:
        """The next so many pipelines cannot be made."""
        self.library.fake_fail_pipelines(count)

    def working_set(self, size: int) -> None:
        """What the device recommends to have in memory, in bytes."""
        self.library.fake_working_set(ctypes.c_uint64(size))

    def compile_time(self, milliseconds: int) -> None:
        """How long making a library takes beside metal_host's own time."""
        self.library.fake_compile_time(milliseconds)


@functools.cache
def load() -> Device:
    """Loads the fake device into this process, once. Raises Missing.

    With TMF_APPLE_CHECKED every kernel is built and run with metal_host's checks.
    """
    requirements()
    sources = [*sorted(HERE.glob("*.mm")), *sorted(HERE.glob("*.cpp"))]
    objects = all_compiled([s for s in sources if s.name != "program_op.cpp"])
    checked = bool(os.environ.get("TMF_APPLE_CHECKED"))
    return Device(linked("fake_mps", objects, []), checked)


def load_extension(
    replaced: Mapping[str, tuple[str, str]] | None = None, shaders: str | None = None
) -> None:
    """Loads csrc/mps over the fake device, with empty caches; it serves from now on.

    replaced: by file name, a text in it and what stands there instead. shaders: the generated
    source of shader texts, if not the project's own.
    """
    device = load()
    changes = dict(replaced or {})
    objects = []
    for source in EXTENSION:
        text = source.read_text()
        if source.name in changes:
            old, new = changes.pop(source.name)
            if old not in text:
                raise ValueError(f"{source.name} has no {old!r}")
            text = text.replace(old, new, 1)
        objects.append(compiled(source, text))
    if changes:
        raise ValueError(f"not sources of the extension: {', '.join(changes)}")
    objects.append(compiled(cross.generated(), shaders))
    path = linked("tmf_mps", objects, [device.path, _C.__file__])
    # a copy, as the loader gives out a file that it has loaded already
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy(path, folder)
        ctypes.CDLL(str(copy), mode=ctypes.RTLD_LOCAL)


@functools.cache
def load_program_op() -> None:
    """Loads torch.ops.fake_mps.encode."""
    device = load()
    path = linked("program_op", [compiled(HERE / "program_op.cpp")], [device.path, _C.__file__])
    torch.ops.load_library(str(path))
