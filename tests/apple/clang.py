"""zig's clang: objects and precompiled headers, each made once and kept."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import cache
import ziglang

ROOT = Path(__file__).parent.parent.parent
DECLARATIONS = Path(__file__).parent / "declarations"
TIME_LIMIT = 300
ZIG = (sys.executable, "-m", "ziglang")
JOBS = 2

INCLUDE = re.compile(r'^ *#(?:include|import) [<"]([^>"]+)[>"]', re.M)
TORCH = ("ATen/", "c10/", "torch/")
# Headers that most of the work of compiling goes into, each precompiled on top of those before it,
# with what includes it: a source gets what it includes anyway, so that nothing of its own is lost.
_CONTEXT = r"ATen/(Context\.h|ops/.*)"
_VALUE = rf"ATen/core/(ivalue\.h|dispatch/.*)|torch/library\.h|{_CONTEXT}"
_TENSOR = rf"ATen/core/Tensor\.h|{_VALUE}"
OF_TORCH = {
    "c10/util/Exception.h": rf"c10/util/Exception\.h|{_TENSOR}",
    "ATen/core/Tensor.h": _TENSOR,
    "ATen/core/ivalue.h": _VALUE,
    "ATen/Context.h": _CONTEXT,
    "torch/library.h": r"torch/library\.h",
}
OF_CXX = {"vector": "vector", "string": "string"}  # of a source without torch


def zig_environment() -> dict[str, str]:
    folder = os.environ.get("ZIG_GLOBAL_CACHE_DIR") or str(cache.folder() / "zig")
    return {**os.environ, "ZIG_GLOBAL_CACHE_DIR": folder, "ZIG_LOCAL_CACHE_DIR": folder}


def zig(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [*ZIG, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=TIME_LIMIT, env=zig_environment()
    )


def _made_by_zig(*arguments: str | Path) -> None:
    """Raises RuntimeError with the messages if there are any."""
    result = zig(*arguments)
    if result.returncode or result.stderr.strip():
        raise RuntimeError(result.stderr)


@functools.cache
def headers_digest() -> str:
    """Of all headers that a source may include, but the system's and torch's."""
    metal_host = ROOT / "torch_mps_fusion" / "metal_host" / "runtime"
    folders = (ROOT / "csrc", ROOT / "shaders" / "include", metal_host, Path(__file__).parent)
    files = [f for folder in folders for f in sorted(folder.rglob("*.h"))]
    return cache.digest(*(f.read_text() for f in files))


@functools.cache
def _includes_of_header(path: Path) -> frozenset[str]:
    return includes(path.read_text(), path.parent)


def includes(text: str, folder: Path) -> frozenset[str]:
    """Names of the headers that a text includes, itself or through headers of the project's;
    folder: where it stands."""
    found = set(INCLUDE.findall(text))
    for name in tuple(found):
        for place in (folder, ROOT / "csrc"):
            if (place / name).is_file():
                found |= _includes_of_header(place / name)
                break
    return frozenset(found)


def needs_torch(source: Path, text: str) -> bool:
    return any(name.startswith(TORCH) for name in includes(text, source.parent))


def precompiled_headers(source: Path, text: str) -> tuple[str, ...]:
    """Those to precompile that a source includes, itself or by what it includes."""
    found = includes(text, source.parent)
    known = OF_TORCH if needs_torch(source, text) else OF_CXX
    return tuple(h for h, by in known.items() if any(re.fullmatch(by, name) for name in found))


def _installed(options: Sequence[str]) -> list[str]:
    """When the compiler and each folder of system headers came: others may be there by now."""
    folders = [Path(ziglang.__file__).parent]
    folders += [Path(b) for a, b in zip(options, options[1:], strict=False) if a == "-isystem"]
    return [str(f.stat().st_mtime_ns) for f in folders]


def precompiled(options: Sequence[str], language: str, headers: Sequence[str]) -> list[str]:
    """The options that include these headers, precompiled for compilations with `options`."""
    if not headers:
        return []
    *before, name = headers
    options = [*options, *precompiled(options, language, before)]
    key = cache.digest(name, language, *options, *_installed(options))
    out = cache.folder() / "objects" / f"{Path(name).stem}-{key}.pch"

    def make(part: Path) -> None:
        header = out.with_suffix(".h")  # stays: the compiler asks whether it has changed
        header.write_text(f"#include <{name}>\n")
        # for an ELF target zig would take the result of -x c++-header to its linker
        emit = ("-S", "-Xclang", "-emit-pch", "-Wno-unused-command-line-argument")
        emit += ("-fpch-instantiate-templates",)  # once, not again in each source
        _made_by_zig("c++", *options, "-x", language, *emit, header, "-o", part)

    return ["-include-pch", str(cache.made(out, make))]


def compiled(
    source: Path,
    text: str,
    options: Sequence[str],
    headers: Sequence[str] = (),
    finish: Callable[[Path], None] = lambda path: None,
) -> Path:
    """The object of a source with this text, from the cache if nothing changed.

    headers: of torch, precompiled. finish: what is done to the object after the compiler.
    Raises RuntimeError with the compiler's messages.
    """
    language = "objective-c++" if source.suffix == ".mm" else "c++"
    parts = (language, *options, *headers, *_installed(options), headers_digest(), text)
    key = cache.digest(str(source), *parts)
    out = cache.folder() / "objects" / f"{source.stem}-{key}.o"

    def make(part: Path) -> None:
        given = part.with_suffix(source.suffix)
        given.write_text(text)
        more = [*precompiled(options, language, headers), "-iquote", str(source.parent)]
        try:
            _made_by_zig("c++", *options, *more, "-x", language, "-c", given, "-o", part)
        finally:
            given.unlink()
        finish(part)

    return cache.made(out, make)
