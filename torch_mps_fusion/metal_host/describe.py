"""What a `.metal` file has to offer: kernels, arguments, function constants, threadgroup memory."""

from __future__ import annotations

import os
from dataclasses import dataclass

from . import build, compiler, llvm, source
from .source import FunctionConstant, Parameter


@dataclass(frozen=True)
class KernelFacts:
    """A kernel by its host name.

    callee: the function, or instance of a template, f<float>.  max_threads: from the attribute
    max_total_threads_per_threadgroup, or None.  threadgroup: name and bytes of each threadgroup
    variable; what [[threadgroup(i)]] arguments take comes on top.
    """

    name: str
    callee: str
    parameters: tuple[Parameter, ...]
    max_threads: int | None
    threadgroup: tuple[tuple[str, int], ...]

    @property
    def threadgroup_bytes(self) -> int:
        return sum(size for _, size in self.threadgroup)


@dataclass(frozen=True)
class FileFacts:
    """The kernels and function constants of a file."""

    path: str
    kernels: tuple[KernelFacts, ...]
    constants: tuple[FunctionConstant, ...]


def describe(
    path: str | os.PathLike[str],
    metal_version: int = compiler.METAL_VERSION,
    address_spaces: bool = True,
) -> FileFacts:
    """Reads and compiles a file; function constants count as 0.

    address_spaces and CompileError: as for Library.
    """
    path = os.fspath(path)
    program = build.prepare(source.flatten(path), compiler.predefined(metal_version))
    text = llvm.unoptimised(path, 0, metal_version, address_spaces)
    functions = llvm.functions(text)
    kernels = tuple(
        KernelFacts(
            e.host,
            e.callee,
            e.decl.parameters,
            e.decl.max_threads,
            llvm.threadgroup_variables(text, functions, e.host),
        )
        for e in program.entries
    )
    return FileFacts(path, kernels, program.constants)
