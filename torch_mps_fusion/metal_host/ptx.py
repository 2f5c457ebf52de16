"""The same `.metal` files for NVIDIA GPUs of compute capability 9.0: PTX text, and cubins.

    from torch_mps_fusion.metal_host.ptx import assemble, build

    module = build("scan.metal", constants={"tiles": 4})    # needs clang only
    print(module.text)
    cubin = assemble(module)                                 # needs ptxas
    print(cubin.resources["scan"].registers)

Building needs no GPU.  How a kernel takes its arguments is in shim/msl/launch_ptx.h, how a shader
takes the device's own operand order in shim/msl/matrix_ptx.h.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import compiler, cuda, rewrite, source
from .build import prepare
from .errors import CompileError
from .source import KernelDecl

ARCH = "sm_90a"
PTX_VERSION = 85


_ORDERED_ATOMIC = re.compile(r"\b(atomic_\w+_explicit)\s*\([^;]*memory_order_(?!relaxed)\w+")


@dataclass(frozen=True)
class PtxKernel:
    """One entry of a module.

    max_threads: what [[max_total_threads_per_threadgroup]] says, else what `build` was told.
    threadgroup_bytes: static threadgroup memory.
    values: buffer indices of the arguments that a launch passes by value, by slot.
    """

    name: str
    declaration: KernelDecl
    max_threads: int | None
    threadgroup_bytes: int
    values: tuple[int, ...] = ()


@dataclass(frozen=True)
class Module:
    """PTX text and the kernels in it, by host name."""

    path: str
    text: str
    kernels: dict[str, PtxKernel]


@dataclass(frozen=True)
class Resources:
    """What ptxas says a kernel uses, in registers a thread and bytes."""

    registers: int
    spill_stores: int
    spill_loads: int
    threadgroup_bytes: int


@dataclass(frozen=True)
class Cubin:
    """Machine code, and what each kernel uses."""

    data: bytes
    resources: dict[str, Resources]


def build(
    path: str | os.PathLike[str],
    constants: Mapping[str | int, object] | None = None,
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    defines: Mapping[str, object] | None = None,
    metal_version: int = compiler.METAL_VERSION,
    *,
    text: str | None = None,
    kernels: Sequence[str] | None = None,
    by_value: bool = False,
    threads: Mapping[str, int] | None = None,
    resident: Mapping[str, int] | None = None,
) -> Module:
    """Compiles a .metal file to PTX.

    constants: function constants by name or index.  defines: macros, beside MSL_GPU.  text: what
    is compiled instead of the file.  kernels: the host names of those that are wanted; else all.
    by_value: `constant T&` arguments are bytes of the launch's parameter, not buffers.
    threads: launch bounds by host name, where the text's own depend on a template.
    resident: by host name, how many threadgroups a multiprocessor is to hold at once; registers are
    shared out accordingly.
    CompileError when the text is refused, when there is no compiler, and when the file calls
    mathematical functions and there is no libdevice to take them from.
    """
    path = os.fspath(path)
    flat = source.flatten(path, [os.fspath(d) for d in include_dirs], text)
    given = [f"-D{name}={value}" for name, value in (defines or {}).items()]
    flags = [*compiler.predefined(metal_version), "-DMSL_GPU=1", *given]
    program = prepare(flat, flags)
    if found := _ORDERED_ATOMIC.search(program.text):
        raise CompileError(f"{path}: {found[1]}: the PTX target has relaxed atomics only")
    entries = _wanted(program.entries, kernels, path)
    values = {e.host: _values(e) if by_value else () for e in entries}
    flags += rewrite.constant_flags(program, constants or {}, flat.text)
    if most := max(map(len, values.values()), default=0):
        flags.append(f"-DMSL_VALUES={most}")
    glue = "\n".join(
        f"MSL_ENTRY({e.host}) {{ {rewrite.call(e, values[e.host])} }}" for e in entries
    )
    ptx = _compile(f"#include <metal_stdlib>\n{program.text}\n{glue}\n", flags, path)
    ptx = re.sub(r"\bmh_entry_(\w+)", r"\1", ptx)
    _refuse_unlinked(ptx, path)
    bounds = {e.host: e.decl.max_threads or (threads or {}).get(e.host) for e in entries}
    ptx = _bounded(ptx, bounds, resident or {})
    made = {
        e.host: PtxKernel(
            e.host, e.decl, bounds[e.host], _static_bytes(ptx, e.host), values[e.host]
        )
        for e in entries
    }
    return Module(path, ptx, made)


def _wanted(
    entries: Sequence[rewrite.Entry], names: Sequence[str] | None, path: str
) -> list[rewrite.Entry]:
    if names is None:
        return list(entries)
    if missing := set(names) - {e.host for e in entries}:
        there = ", ".join(sorted(e.host for e in entries)) or "none"
        raise CompileError(f"{path}: no kernel {', '.join(sorted(missing))}; there are: {there}")
    return [e for e in entries if e.host in names]


def _values(entry: rewrite.Entry) -> tuple[int, ...]:
    """Buffer indices of the constant references, in order."""
    found = (p for p in entry.decl.parameters if p.kind == "constant" and p.type.endswith("&"))
    return tuple(sorted(p.index for p in found if p.index is not None))


def _compile(text: str, flags: Sequence[str], path: str) -> str:
    front = compiler.compiler()
    # zig spells the processor and the PTX version in one word
    target = (
        ("--target=nvptx64-cuda", f"-mcpu={ARCH}+ptx{PTX_VERSION}")
        if front.zig
        else ("--target=nvptx64-nvidia-cuda", f"-march={ARCH}")
    )
    command = [
        *front.command,
        *target,
        *("-std=c++20", "-O3", "-g0", "-S", "-nocudalib", "-Wno-unused-command-line-argument"),
        # off down to the back end: "fast" would override the pragma in the source
        "-ffp-contract=off",
        # half and bfloat round at every operation, as on the host
        *("-Xclang", "-ffloat16-excess-precision=none"),
        *("-Xclang", "-fbfloat16-excess-precision=none"),
        # a barrier or a shuffle must not move into or out of a branch
        "-fconvergent-functions",
        # everything is inlined into the entry: a call would pass its arguments through memory
        *("-mllvm", "-inline-threshold=1000000"),
        # an array that a loop indexes is in registers only once the loop is unrolled
        *("-mllvm", "-unroll-threshold=1000"),
        *("-Xclang", "-cl-single-precision-constant", "-fno-finite-loops", "-fno-strict-aliasing"),
        *("-Wno-unknown-pragmas", "-I", str(compiler.SHIM), *flags),
    ]
    library = cuda.libdevice()
    if library:
        command += ["-Xclang", "-mlink-builtin-bitcode", "-Xclang", str(library)]
    with tempfile.TemporaryDirectory(dir=compiler.cache_dir(), prefix=".making-") as folder:
        given, out = Path(folder, "shader.cpp"), Path(folder, "shader.ptx")
        given.write_text(text)
        compiler.invoke([*command, "-o", str(out), str(given)], f"{path} for PTX")
        return out.read_text()


def _refuse_unlinked(ptx: str, path: str) -> None:
    """CompileError when something is left to a library that is not there."""
    names = sorted(set(re.findall(r"\b__nv_(\w+?)\b(?<!_param_\d)", ptx)))
    if names:
        raise CompileError(
            f"{path}: {', '.join(names)} need libdevice, which a CUDA toolkit (CUDA_HOME or nvcc "
            "on PATH) or `pip install triton` brings"
        )


def _bounded(ptx: str, bounds: Mapping[str, int | None], resident: Mapping[str, int]) -> str:
    """Launch bounds for the kernels that have them.

    They let ptxas spend the registers that so many threads leave, on loads in flight for one.
    """
    for name, threads in bounds.items():
        if threads is None:
            continue
        head = re.search(rf"\.entry {re.escape(name)}\(.*?\)[^\n]*\n", ptx, re.S)
        if head is None:
            raise CompileError(f"kernel {name} is not in the PTX that was made of it")
        bound = f".maxntid {threads}, 1, 1\n"
        if name in resident:
            bound += f".minnctapersm {resident[name]}\n"
        ptx = ptx[: head.end()] + bound + ptx[head.end() :]
    return ptx


def _entry(ptx: str, name: str) -> str:
    """The text of one entry, from its name to its closing brace."""
    found = re.search(rf"\.entry {re.escape(name)}\(.*?^\}}", ptx, re.S | re.M)
    return found[0] if found else ""


def _static_bytes(ptx: str, name: str) -> int:
    """Bytes of the threadgroup variables that a kernel names; all its calls are inlined."""
    total, words = 0, set(re.findall(r"[\w$]+", _entry(ptx, name)))
    variable = r"\.shared\s+\.align \d+ \.[busf](\d+) ([\w$]+)(?:\[(\d+)\])?;"
    for bits, symbol, count in re.findall(variable, ptx):
        total += (symbol in words) * int(bits) // 8 * int(count or 1)
    return total


def assemble(module: Module, max_registers: int | None = None) -> Cubin:
    """Assembles a module with ptxas.  CompileError when it is not there or refuses the text."""
    if max_registers is not None and not 16 <= max_registers <= 255:
        raise ValueError(f"max_registers: got {max_registers}, accepted: 16 to 255")
    command = [str(cuda.require_ptxas()), f"-arch={ARCH}", "-v"]
    if max_registers is not None:
        command.append(f"-maxrregcount={max_registers}")
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder, "shader.ptx"), Path(folder, "shader.cubin")
        given.write_text(module.text)
        said = _ptxas([*command, "-o", str(out), str(given)], module.path)
        return Cubin(out.read_bytes(), _resources(said))


def _ptxas(command: list[str], path: str) -> str:
    """Runs ptxas; what it says about resources."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=compiler.TIME_LIMIT)
    except subprocess.TimeoutExpired:
        limit = f"{compiler.TIME_LIMIT:g} s"
        raise CompileError(f"{path}: ptxas ran past its limit of {limit}") from None
    if done.returncode:
        raise CompileError(f"{path}: refused by ptxas:\n{done.stderr.strip()}")
    return done.stderr


def _resources(said: str) -> dict[str, Resources]:
    out = {}
    for part in re.split(r"Compiling entry function '", said)[1:]:
        name = part.split("'", 1)[0]

        def number(pattern: str, part: str = part) -> int:
            found = re.search(pattern, part)
            return int(found[1]) if found else 0

        out[name] = Resources(
            number(r"Used (\d+) registers"),
            number(r"(\d+) bytes spill stores"),
            number(r"(\d+) bytes spill loads"),
            number(r"(\d+) bytes smem"),
        )
    return out
