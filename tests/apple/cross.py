"""Compiles the extension's own sources for arm64 macOS and links them, with zig and without an SDK.

zig brings clang, libc++'s headers and Darwin's C headers; `declarations/` has the rest.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import tbd
import wheels
import ziglang
from macho import MachO

ROOT = Path(__file__).parent.parent.parent
DECLARATIONS = Path(__file__).parent / "declarations"
TARGET = "aarch64-macos.14.0"
TIME_LIMIT = 300
JOBS = 2
ZIG = (sys.executable, "-m", "ziglang")

# As setup.py compiles on Darwin, but for the flags that Python adds.
FLAGS = (
    *("-target", TARGET, "-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden"),
    *("-ffp-contract=off", "-fno-sanitize=all", "-DPy_LIMITED_API=0x030A0000"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"),
    # what Apple's libc++ of the target lacks is not to be used
    *("-D_LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS=1", "-Wno-macro-redefined"),
)
# What Python's own process provides to an extension.
PYTHON = "the Python process"
PYTHON_NAME = re.compile(r"__?Py")
# Of libc++ the compiler vouches: with the availability annotations it refuses what the target's
# lacks. On a Mac the build takes Apple's own headers of it, so that the names differ anyway.
CXX_NAME = re.compile(r"__Z(T[A-Z])?N?[KV]*St|__Z(nw|na|dl|da)[mP]")


def zig_environment() -> dict[str, str]:
    folder = os.environ.get("ZIG_GLOBAL_CACHE_DIR") or str(wheels.cache() / "zig")
    return {**os.environ, "ZIG_GLOBAL_CACHE_DIR": folder, "ZIG_LOCAL_CACHE_DIR": folder}


def zig(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [*ZIG, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=TIME_LIMIT, env=zig_environment()
    )


def generated() -> Path:
    """The embedded shader texts, as the build generates them."""
    spec = importlib.util.spec_from_file_location(
        "embed_shaders", ROOT / "tools" / "embed_shaders.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path = wheels.cache() / "generated" / "shader_text.cpp"
    module.write(path)
    return path


def sources() -> list[Path]:
    """Every source of the extension on Darwin."""
    csrc = ROOT / "csrc"
    return [*sorted(csrc.rglob("*.cpp")), *sorted(csrc.rglob("*.mm")), generated()]


def include_flags(torch: Path) -> list[str]:
    include = torch / "torch" / "include"
    folders = [
        DECLARATIONS / "any",
        include,
        include / "torch" / "csrc" / "api" / "include",
        Path(sysconfig.get_path("include")),
    ]
    own = [f for p in (ROOT / "csrc", ROOT) for f in ("-I", str(p))]
    return [*own, *(f for p in folders for f in ("-isystem", str(p)))]


def headers_digest() -> str:
    """Of all that a source may include, but torch."""
    digest = hashlib.sha256()
    metal_host = ROOT / "torch_mps_fusion" / "metal_host" / "runtime"
    for folder in (ROOT / "csrc", ROOT / "shaders" / "include", metal_host, DECLARATIONS):
        for file in sorted(folder.rglob("*.h")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


# What most sources read of torch's headers, which is most of the work of compiling them.
COMMON = "#include <ATen/core/Tensor.h>\n#include <torch/library.h>\n"


def precompiled(torch: Path) -> Path:
    """The common headers, precompiled for `compiled` without further flags."""
    flags = [*FLAGS, *include_flags(torch)]
    key = hashlib.sha256("\n".join([*flags, COMMON]).encode()).hexdigest()[:20]
    out = wheels.cache() / "objects" / f"common-{key}.pch"
    if not out.exists():
        out.parent.mkdir(exist_ok=True)
        header, part = out.with_suffix(".h"), out.with_suffix(f".{os.getpid()}.pch")
        header.write_text(COMMON)
        result = zig("c++", *flags, "-x", "c++-header", "-c", header, "-o", part)
        if result.returncode != 0:
            raise RuntimeError(result.stderr)
        os.replace(part, out)
    return out


def compiled(source: Path, torch: Path, more: tuple[str, ...] = ()) -> tuple[Path, str]:
    """The object of a source, from the cache if nothing changed; and the compiler's messages,
    which are empty if it was made."""
    language = ("-x", "objective-c++", "-fblocks") if source.suffix == ".mm" else ()
    flags = [*FLAGS, *language, *more, *include_flags(torch)]
    if source.suffix == ".cpp" and "plan" not in source.parts and not more:
        flags += ["-include-pch", str(precompiled(torch))]
    key = hashlib.sha256(
        "\n".join([*flags, str(source), headers_digest()]).encode() + source.read_bytes()
    ).hexdigest()[:20]
    out = wheels.cache() / "objects" / f"{source.stem}-{key}.o"
    if out.exists():
        return out, ""
    out.parent.mkdir(exist_ok=True)
    part = out.with_suffix(f".{os.getpid()}.o")
    result = zig("c++", *flags, "-c", source, "-o", part)
    if result.returncode == 0:
        os.replace(part, out)
    return out, result.stderr.strip()


def objects(torch: Path) -> list[Path]:
    """The objects of all sources. RuntimeError with the messages if one has any."""
    precompiled(torch)
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        results = list(pool.map(lambda s: compiled(s, torch), sources()))
    messages = [m for _, m in results if m]
    if messages:
        raise RuntimeError("\n".join(messages))
    return [o for o, _ in results]


def torch_libraries(torch: Path) -> list[Path]:
    return [torch / "torch" / "lib" / f"lib{n}.dylib" for n in ("torch", "torch_cpu", "c10")]


def stub_folder(torch: Path) -> Path:
    return wheels.cache() / "tbd" / torch.name


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
    result = zig(
        *("c++", "-target", TARGET, "-nostdlib++", "-shared", "-o", out),
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
