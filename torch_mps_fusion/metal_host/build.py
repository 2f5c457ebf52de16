"""From a `.metal` file to a shared library of this machine, through the cache."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import compiler, rewrite, source

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
        mode.append("-DMSL_NO_ADDRESS_SPACES")
    key = compiler.digest(
        given.marked(),
        repr(sorted((str(k), repr(v)) for k, v in constants.items())),
        compiler.folder_digest(compiler.SHIM),
        *[(compiler.HERE / f).read_text() for f in ("rewrite.py", "source.py", "compiler.py")],
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
        warnings = compiler.compile_library(text, flags, runtime, out, time_limit)
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
