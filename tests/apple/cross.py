"""Compiles the extension's own sources for arm64 macOS and links them, with zig and without an SDK.

zig brings clang, libc++'s headers and Darwin's C headers; `declarations/` has the rest.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import importlib.util
import re
import sysconfig
from pathlib import Path

import cache
import clang
import downloads
import tbd
import wheels
import ziglang
from clang import DECLARATIONS, ROOT
from macho import MachO

TARGET = "aarch64-macos.14.0"

# As setup.py compiles on Darwin, but for the flags that Python adds, and without optimisation:
# what an optimiser would drop has to be declared and linked too.
FLAGS = (
    *("-target", TARGET, "-std=c++20", "-O0", "-g0", "-fPIC", "-fvisibility=hidden"),
    *("-ffp-contract=off", "-fno-sanitize=all", "-DPy_LIMITED_API=0x030A0000"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"),
    # what Apple's libc++ of the target lacks is not to be used
    *("-D_LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS=1", "-Wno-macro-redefined"),
)
# As for an optimised build, which needs no library of sanitizers (zig would make one first),
# but that nothing is left out.
LINK = ("-target", TARGET, "-O1", "-Wl,--no-gc-sections", "-nostdlib++", "-shared")
# What Python's own process provides to an extension.
PYTHON = "the Python process"
PYTHON_NAME = re.compile(r"__?Py")
# Of libc++ the compiler vouches: with the availability annotations it refuses what the target's
# lacks. On a Mac the build takes Apple's own headers of it, so that the names differ anyway.
CXX_NAME = re.compile(r"__Z(T[A-Z])?N?[KV]*St|__Z(nw|na|dl|da)[mP]")


def generated() -> Path:
    """The embedded shader texts, as the build generates them."""
    spec = importlib.util.spec_from_file_location(
        "embed_shaders", ROOT / "tools" / "embed_shaders.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path = cache.folder() / "generated" / "shader_text.cpp"
    with downloads.locked(path):
        module.write(path)
    return path


def sources() -> list[Path]:
    """Every source of the extension on Darwin."""
    csrc = ROOT / "csrc"
    return [*sorted(csrc.rglob("*.cpp")), *sorted(csrc.rglob("*.mm")), generated()]


def options(torch: Path | None) -> list[str]:
    """torch: whose headers are to be found."""
    folders = [DECLARATIONS / "any", Path(sysconfig.get_path("include"))]
    if torch is not None:
        include = torch / "torch" / "include"
        folders += [include, include / "torch" / "csrc" / "api" / "include"]
    own = [f for p in (ROOT / "csrc", ROOT) for f in ("-I", str(p))]
    return [*FLAGS, *own, *(f for p in folders for f in ("-isystem", str(p)))]


def compiled(source: Path, torch: Path) -> Path:
    """The object of a source. One that includes nothing of torch's is compiled without torch, once
    for all of its versions. Raises RuntimeError with the compiler's messages."""
    text = source.read_text()
    flags = options(torch if clang.needs_torch(source, text) else None)
    flags += ["-fblocks"] if source.suffix == ".mm" else []
    return clang.compiled(source, text, flags, clang.precompiled_headers(source, text))


def objects(torch: Path) -> list[Path]:
    """The objects of all sources. RuntimeError with the messages if one has any."""
    # those without torch first, while one thread compiles its headers for the others
    ordered = sorted(sources(), key=lambda s: clang.needs_torch(s, s.read_text()))
    with concurrent.futures.ThreadPoolExecutor(clang.JOBS) as pool:
        pool.submit(clang.precompiled, options(torch), "c++", tuple(clang.OF_TORCH))
        futures = [pool.submit(compiled, source, torch) for source in ordered]
    errors = [f.exception() for f in futures]
    if any(errors):
        raise RuntimeError("\n".join(str(e) for e in errors if e))
    return [f.result() for f in futures]


def torch_libraries(torch: Path) -> list[Path]:
    return [torch / "torch" / "lib" / f"lib{n}.dylib" for n in ("torch", "torch_cpu", "c10")]


def stub_folder(torch: Path) -> Path:
    return cache.folder() / "tbd" / torch.name


def wanted(objects: list[Path]) -> set[str]:
    """What the objects leave undefined."""
    return {s for o in objects for s in MachO(o).imports}


def python_symbols(undefined: set[str]) -> set[str]:
    """Those of Python that this Python exports: extensions leave them to the process.

    Py_LIMITED_API has seen to it that there are no others.
    """
    return {s for s in undefined if PYTHON_NAME.match(s) and hasattr(ctypes.pythonapi, s[1:])}


def write_stubs(objects: list[Path], torch: Path) -> None:
    """The .tbd files of what Apple's libraries and Python provide."""
    lib = torch / "torch" / "lib"
    binaries = [MachO(lib / f"lib{n}.dylib") for n in ("c10", "torch", "torch_cpu", "torch_python")]
    (pyobjc,) = (wheels.unpacked("pyobjc") / "Metal").glob("_Metal*.so")
    binaries += [MachO(pyobjc), MachO(wheels.unpacked("mlx-metal") / "mlx/lib/libmlx.dylib")]
    symbols = tbd.imported_symbols(binaries)
    undefined = wanted(objects)
    symbols[PYTHON] = python_symbols(undefined)
    symbols[tbd.CXX] |= {s for s in undefined if CXX_NAME.match(s)}
    tbd.write(stub_folder(torch), symbols)


def linked(objects: list[Path], torch: Path, out: Path) -> str:
    """Links an extension at `out`, every symbol to a library; returns the linker's messages."""
    write_stubs(objects, torch)
    folder = stub_folder(torch)
    names = (
        "Metal",
        "Foundation",
        "CoreFoundation",
        "libobjc",
        "libc++",
        tbd.file_name(PYTHON),
    )
    result = clang.zig(
        *("c++", *LINK, "-o", out),
        *objects,
        *torch_libraries(torch),
        *(folder / f"{n}.tbd" for n in names),
    )
    return result.stderr.strip()


def unexported(extension: Path, torch: Path) -> tuple[int, list[str]]:
    """How many symbols the extension binds, and those that what they are bound to lacks."""
    exports = {
        name: MachO(path).exports
        for path in torch_libraries(torch)
        for name in (f"@rpath/{path.name}",)
    }
    for stub in stub_folder(torch).glob("*.tbd"):
        name, symbols = tbd.read(stub)
        exports[name] = symbols
    # zig has its own description of libSystem, and links with it
    (system,) = (Path(ziglang.__file__).parent / "lib" / "libc" / "darwin").glob("libSystem.tbd")
    exports[tbd.SYSTEM] |= set(re.findall(r"\b_\w+", system.read_text()))
    imports = MachO(extension).imports
    return len(imports), [
        f"{s} of {lib}" for s, lib in imports.items() if s not in exports.get(lib, ())
    ]
