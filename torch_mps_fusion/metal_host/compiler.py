"""Compilers, the cache of what they made, and the diagnostics they give."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from .errors import CompileError

HERE = Path(__file__).resolve().parent
SHIM = HERE / "shim"
RUNTIME = HERE / "runtime"
TIME_LIMIT = 120.0  # seconds for one run of a compiler
METAL_VERSION = 320  # __METAL_VERSION__ unless a library asks for another


class Compiler(NamedTuple):
    command: tuple[str, ...]
    zig: bool
    version: str


def _run(command: Sequence[str], limit: float, **more) -> subprocess.CompletedProcess[str]:
    name = Path(command[0]).name
    zig = os.environ.get("ZIG_GLOBAL_CACHE_DIR") or str(cache_dir() / "zig")
    env = {**os.environ, "ZIG_LOCAL_CACHE_DIR": zig, "ZIG_GLOBAL_CACHE_DIR": zig}
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        cwd="/",  # clang shortens the paths that share a folder with the one it runs in
        start_new_session=True,
        **more,
    )
    try:
        out, err = process.communicate("", timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        raise CompileError(f"the compiler ({name}) ran past its limit of {limit:g} s") from None
    return subprocess.CompletedProcess(list(command), process.returncode, out, err)


@functools.cache
def compiler() -> Compiler:
    """The clang that compiles shaders: METAL_HOST_CLANG, else zig's, else one on PATH.

    Raises CompileError that says what to install.
    """
    asked = os.environ.get("METAL_HOST_CLANG")
    if asked:
        command = tuple(asked.split())
        if not shutil.which(command[0]):
            raise CompileError(f"METAL_HOST_CLANG={asked}: there is no such program")
    elif importlib.util.find_spec("ziglang"):
        command = (sys.executable, "-m", "ziglang", "c++")
    else:
        names = ["clang++", *(f"clang++-{n}" for n in range(25, 18, -1))]
        found = next((n for n in names if shutil.which(n)), None)
        if not found:
            raise CompileError(
                "no compiler for shaders: `pip install ziglang`, or install clang 19 or later "
                "(METAL_HOST_CLANG names one that is not on PATH)"
            )
        command = (found,)
    zig = "ziglang" in command or Path(command[0]).name == "zig"
    ask = [*command[:-1], "version"] if zig else [*command, "--version"]
    version = _run(ask, 30).stdout.split("\n")[0].strip()
    return Compiler(command, zig, f"{'zig ' if zig else ''}{version}")


@functools.cache
def machine_flags() -> tuple[str, ...]:
    """Flags for this machine's processor; refuses those without a stack switch."""
    machine = platform.machine().lower()
    zig = compiler().zig
    # zig adds undefined-behaviour traps of its own unless told otherwise
    flags = ("-fno-sanitize=undefined",) if zig else ()
    if machine in ("aarch64", "arm64"):
        return flags
    if machine not in ("x86_64", "amd64"):
        raise CompileError(f"metal_host runs on x86-64 and aarch64; this machine is {machine}")
    try:
        modern = "avx2" in Path("/proc/cpuinfo").read_text()
    except OSError:
        modern = True
    if not modern:
        return (*flags, "-mcpu=x86_64") if zig else flags
    return (*flags, "-mcpu=x86_64_v3" if zig else "-march=x86-64-v3")


# Unsuffixed literals are float; nothing is contracted; half and bfloat round at every operation;
# a loop without side effects is not assumed to end; the stack keeps its frames for reports.
LANGUAGE = (
    "-std=c++17",
    "-Xclang",
    "-cl-single-precision-constant",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-finite-loops",
    "-fno-strict-aliasing",
    "-Wall",
    "-Wno-unused",
    "-Wno-unknown-pragmas",
    "-Wno-sign-compare",
    "-Wno-c++20-extensions",
)
CPU = (
    "-fPIC",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=hidden",
    "-fno-optimize-sibling-calls",
    "-Xclang",
    "-ffloat16-excess-precision=none",
    "-Xclang",
    "-fbfloat16-excess-precision=none",
    "-gline-tables-only",
    "-gdwarf-4",
)
PLAIN = ("-O2",)
CHECKED = (
    "-O1",
    "-fno-unroll-loops",
    "-fsanitize=thread",
    # A load wider than 16 bytes is not instrumented.
    "-fno-vectorize",
    "-fno-slp-vectorize",
    "-mllvm",
    "-tsan-distinguish-volatile",
    "-mllvm",
    "-tsan-instrument-read-before-write",
    "-mllvm",
    "-tsan-instrument-func-entry-exit=0",
)


# Not Metal's, for a shader's own #ifdef: a clock that all threads of a launch share, in 32 bits
# that wrap. On this machine steps of the scheduler, as PTX nanoseconds.
TICKS = "-DMSL_TICKS()=(msl::target::ticks())"


def predefined(metal_version: int) -> tuple[str, ...]:
    return ("-D__METAL__=1", f"-D__METAL_VERSION__={metal_version}", "-D__HAVE_BFLOAT__=1", TICKS)


# ---------------------------------------------------------------- cache


def cache_dir() -> Path:
    """METAL_HOST_CACHE, else metal_host in the user's cache folder."""
    asked = os.environ.get("METAL_HOST_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    path = Path(asked) if asked else Path(base).expanduser() / "metal_host"
    path.mkdir(parents=True, exist_ok=True)
    return path.resolve()


def digest(*parts: str | bytes) -> str:
    h = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        h.update(len(data).to_bytes(8, "little") + data)
    return h.hexdigest()[:20]


@functools.cache
def folder_digest(folder: Path) -> str:
    files = sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return digest(*(x for p in files for x in (str(p.relative_to(folder)), p.read_bytes())))


def cached(name: str, make: Callable[[Path], None], beside: Sequence[str] = ()) -> Path:
    """The file `name` of the cache, made by `make(path)` where it is missing.

    `make` also writes the files with the suffixes `beside`. Two processes that make the same
    file do not disturb each other: each writes its own and renames it, the file itself last.
    """
    path = cache_dir() / name
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=cache_dir(), prefix=".making-") as folder:
            part = Path(folder) / name
            make(part)
            for suffix in beside:
                os.replace(part.with_suffix(suffix), path.with_suffix(suffix))
            os.replace(part, path)
        _prune()
    return path


def _prune(days: float = 30) -> None:
    """Removes what nobody has used for long; a build touches the library that it finds."""
    oldest = time.time() - days * 86400
    for path in cache_dir().iterdir():
        with contextlib.suppress(OSError):
            if path.suffix in (".so", ".json") and path.stat().st_mtime < oldest:
                path.unlink()


# ---------------------------------------------------------------- compiling


def invoke(arguments: Sequence[str], what: str, limit: float | None = None) -> str:
    """Runs the compiler; returns its warnings. Raises CompileError with its messages."""
    limit = TIME_LIMIT if limit is None else limit
    result = _run(arguments, limit)
    if result.returncode == 0:
        return _in_metal_words(_own_warnings(result.stderr))
    messages = _own_warnings(result.stderr or result.stdout).strip()
    crashed = result.returncode < 0 or "PLEASE submit a bug report" in messages
    if crashed:
        raise CompileError(f"the compiler crashed on {what}\n{messages[-2000:]}")
    raise CompileError(_in_metal_words(_shorten(messages)) or f"the compiler failed on {what}")


def _shorten(messages: str, errors: int = 20) -> str:
    kept, count = [], 0
    for line in messages.split("\n"):
        if re.search(r"\berror: ", line):
            count += 1
        if count > errors:
            break
        kept.append(line)
    return "\n".join(kept)


# What the shim makes of Metal's words, and the words.
_WORDS = (
    (r"volatile __global\b", "coherent(device) device"),
    (r"__global\b", "device"),
    (r"__local\b", "threadgroup"),
    (r"__constant\b", "constant"),
    (r"\bgeneric address space", "the thread address space"),
    (r"\b(\w+) __attribute__\(\(ext_vector_type\((\d)\)\)\)", r"\1\2"),
    (r"attempt to use a poisoned identifier", "this word is not in the Metal language"),
)


def _in_metal_words(messages: str) -> str:
    def one(match: re.Match[str]) -> str:
        line = match[0]
        for pattern, word in _WORDS:
            line = re.sub(pattern, word, line)
        return line

    return re.sub(r"^.*: (?:error|warning|note): .*$", one, messages, flags=re.M)


def preprocess(marked: str, flags: Sequence[str], limit: float | None = None) -> str:
    """clang -E of a text whose includes of the Metal library have been taken out."""
    with tempfile.TemporaryDirectory(dir=cache_dir(), prefix=".making-") as folder:
        given, out = Path(folder) / "shader.cpp", Path(folder) / "shader.i"
        given.write_text(marked)
        command = [*compiler().command, "-E", "-std=c++17", "-nostdinc", *flags]
        invoke([*command, str(given), "-o", str(out)], "the preprocessor", limit)
        return out.read_text()


def compile_library(
    text: str, flags: Sequence[str], runtime: Path, out: Path, limit: float | None = None
) -> str:
    """Compiles rewritten C++ to a shared library at `out`; returns the warnings."""
    given, object_file = out.with_suffix(".cpp"), out.with_suffix(".o")
    given.write_text(text)
    front = [*compiler().command, *machine_flags(), *LANGUAGE, *CPU, *flags]
    warnings = invoke([*front, "-c", str(given), "-o", str(object_file)], "the shader", limit)
    link = [*_linker(), "-shared", "-o", str(out), str(object_file), str(runtime), "-lm"]
    invoke(link, "linking")
    return warnings


def _system_cxx() -> list[str] | None:
    asked = os.environ.get("METAL_HOST_CXX") or shutil.which("g++")
    return asked.split() if asked else None


def _linker() -> list[str]:
    """The system's own where there is one: zig first builds a library of its own (20 s, once)."""
    cc = compiler()
    return _system_cxx() or ([*cc.command[:-1], "cc"] if cc.zig else [*cc.command])


def _own_warnings(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if not line.startswith("zig: warning"))


@functools.cache
def runtime() -> Path:
    """The fiber runtime, built on first use by g++ (or METAL_HOST_CXX, or the shader compiler)."""
    command = _system_cxx()
    if command:
        version = _run([*command, "--version"], 30).stdout.split("\n")[0]
    else:
        command = [*compiler().command, "-fno-sanitize=undefined"]
        version = compiler().version
    flags = ["-std=c++20", "-O2", "-g1", "-fPIC", "-shared", "-fvisibility=default", "-Wno-psabi"]
    key = digest(folder_digest(RUNTIME), version, *command, *flags, platform.machine())
    name = f"libmh-{key}.so"
    if sys.platform != "darwin":
        flags.append(f"-Wl,-soname,{name}")

    def make(out: Path) -> None:
        source = str(RUNTIME / "runtime.cpp")
        invoke([*command, *flags, source, "-o", str(out), "-lpthread"], "the fiber runtime", 300)

    return cached(name, make)
