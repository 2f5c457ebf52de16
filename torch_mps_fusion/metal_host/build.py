"""From a `.metal` file to a shared library of this machine, through the cache."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import compiler, rewrite, source
from .errors import CompileError

_SYSTEM_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<([\w./]+)>[^\n]*$", re.M)


@dataclasses.dataclass(frozen=True)
class KernelInfo:
    """A kernel that can be launched: `name` is its host name, `function` the name in the text."""

    name: str
    function: str
    parameters: tuple[source.Parameter, ...]
    max_threads: int | None


@dataclasses.dataclass(frozen=True)
class Built:
    """A built library: its file, its kernels, the function constants and clang's warnings."""

    path: Path
    kernels: tuple[KernelInfo, ...]
    constants: tuple[str, ...]
    warnings: str


def prepare(
    given: source.Source, flags: Sequence[str] = (), limit: float | None = None
) -> rewrite.Program:
    """Preprocesses and rewrites a flattened shader; `flags` are -D flags for the preprocessor."""
    return rewrite.rewrite(compiler.preprocess(without_library(given.marked()), flags, limit))


def without_library(text: str) -> str:
    """The text with the includes of the Metal library taken out: the shim is included once."""

    def one(match: re.Match[str]) -> str:
        return "" if (compiler.SHIM / match[1]).is_file() else match[0]

    return _SYSTEM_INCLUDE.sub(one, text)


_LOOSE = "-DMSL_NO_ADDRESS_SPACES"
# clang has no address spaces on the methods of a class, so these say nothing against a shader.
_CLASS_ERRORS = re.compile(
    r"no matching constructor for initialization of '[^*]*$|no viable overloaded '='"
    r"|no viable overloaded operator\[\]"
    r"|no viable conversion from '(?:device|threadgroup|constant) [^*]*'"
    r"|cannot initialize object parameter of type"
    r"|invalid operands to binary expression \('(?:device|threadgroup|constant) packed"
)


def _compile(text: str, flags: list[str], runtime: Path, out: Path, limit: float | None) -> str:
    """Compiles; a text that clang refuses only for its classes in address spaces is compiled
    without them. Returns the warnings, which then say so."""
    try:
        return compiler.compile_library(text, flags, runtime, out, limit)
    except CompileError as strict:
        errors = re.findall(r"^(.*?): error: (.*)$", str(strict), re.M)
        if _LOOSE in flags or not errors or not all(_CLASS_ERRORS.search(e) for _, e in errors):
            raise
        try:
            warnings = compiler.compile_library(text, [*flags, _LOOSE], runtime, out, limit)
        except CompileError:
            raise strict from None
        note = "a class is used as a whole in device, threadgroup or constant memory"
        return f"{errors[0][0]}: note: address spaces are not checked: {note}\n{warnings}".strip()


def build(
    given: source.Source,
    constants: Mapping[str | int, object],
    *,
    checked: bool = False,
    defines: Mapping[str, object] | None = None,
    metal_version: int = compiler.METAL_VERSION,
    address_spaces: bool = True,
    time_limit: float | None = None,
) -> Built:
    """Builds `given` for this machine, or finds it in the cache. Raises CompileError."""
    runtime = compiler.runtime()
    predefined = compiler.predefined(metal_version)
    # The user's own macros are for the user's own text: the shim does not see them.
    pre = [*predefined, *(f"-D{k}={v}" for k, v in (defines or {}).items())]
    mode = [*(compiler.CHECKED if checked else compiler.PLAIN), *predefined]
    mode += ["-I", str(compiler.SHIM)]
    if not address_spaces:
        mode.append(_LOOSE)
    key = compiler.digest(
        given.marked(),
        repr(sorted((str(k), repr(v)) for k, v in constants.items())),
        compiler.folder_digest(compiler.SHIM),
        *[
            (compiler.HERE / f"{m}.py").read_text()
            for m in ("rewrite", "source", "compiler", "build")
        ],
        runtime.name,
        compiler.compiler().version,
        *compiler.machine_flags(),
        *mode,
        *pre,
    )
    stem = re.sub(r"\W", "_", Path(given.path).stem)

    def make(out: Path) -> None:
        program = prepare(given, pre, time_limit)
        flags = [*mode, *rewrite.constant_flags(program, constants, given.text)]
        text = f'#include <metal_stdlib>\n{program.text}\n# 1 "glue"\n{rewrite.cpu_glue(program)}'
        warnings = _compile(text, flags, runtime, out, time_limit)
        about = {
            "kernels": [
                dataclasses.asdict(
                    KernelInfo(e.host, e.callee, e.decl.parameters, e.decl.max_threads)
                )
                for e in program.entries
            ],
            "constants": [c.name for c in program.constants],
            "warnings": warnings,
        }
        out.with_suffix(".json").write_text(json.dumps(about))

    path = compiler.cached(f"{stem}-{key}.so", make, (".json",))
    for used in (path, path.with_suffix(".json"), runtime):
        os.utime(used)
    about = json.loads(path.with_suffix(".json").read_text())
    kernels = tuple(
        KernelInfo(
            k["name"],
            k["function"],
            tuple(source.Parameter(**p) for p in k["parameters"]),
            k["max_threads"],
        )
        for k in about["kernels"]
    )
    return Built(path, kernels, tuple(about["constants"]), about["warnings"])
