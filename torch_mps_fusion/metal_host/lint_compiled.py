"""The lint's rules that need a compiler.

Recursion is looked for in the graph of calls, so an overload that calls another, or a template that
calls itself with a smaller number, is none.  An implicit multiply-add is what clang's own front end
would contract.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from . import llvm, source
from .lint import Finding, lint, wishes

THREADGROUP_LIMIT = 32 * 1024


def _cycles(functions: dict[str, llvm.Function]) -> Iterator[list[str]]:
    """Each function that can reach itself, with the way back."""
    for start in functions:
        ways = [[start]]
        seen: set[str] = set()
        while ways:
            way = ways.pop(0)
            for callee in [call.callee for call in functions[way[-1]].calls]:
                if callee == start:
                    yield way
                    ways = []
                    break
                if callee in functions and callee not in seen:
                    seen.add(callee)
                    ways.append([*way, callee])


def lint_compiled(
    path: str | os.PathLike[str],
    level: tuple[int, int] | None = None,
    address_spaces: bool = True,
) -> list[Finding]:
    """Findings that need the compiler.

    address_spaces: as for Library.  CompileError when the compiler refuses the file.
    """
    path = os.fspath(path)
    text = source.flatten(path)
    level = level or wishes(Path(path).read_text())[0].level
    explicit = {f for f in (path, *text.files) if wishes(Path(f).read_text())[0].explicit_fma}
    found: set[Finding] = set()
    has_constants = bool(source.function_constants(source.blank_comments(text.text)))
    for value in (0, 1) if has_constants else (0,):
        made = llvm.unoptimised(path, value, level[0] * 100 + level[1] * 10, address_spaces)
        debug, functions = llvm.Debug(made), llvm.functions(made)
        found |= set(_recursion(functions, debug))
        found |= set(_multiply_adds(functions, debug, explicit))
        found |= set(_threadgroup_memory(made, functions, debug))
    return sorted(found)


def _recursion(functions: dict[str, llvm.Function], debug: llvm.Debug) -> Iterator[Finding]:
    for way in _cycles(functions):
        nodes = [functions[name].node for name in way]
        if nodes[0] is None:
            continue
        file, line = debug.place(nodes[0])
        names = [debug.name(n) for n in nodes if n is not None]
        through = " -> ".join([*names, names[0]])
        yield Finding(file, line, "recursion", f"Metal has no recursion: {through}")


def _multiply_adds(
    functions: dict[str, llvm.Function], debug: llvm.Debug, explicit: set[str]
) -> Iterator[Finding]:
    for function in functions.values():
        for call in function.calls:
            if call.location is None or not call.callee.startswith("llvm.fmuladd"):
                continue
            file, line = debug.place(call.location)
            if file in explicit:
                message = "a * b + c may be contracted: write fma(), or round the product first"
                yield Finding(file, line, "implicit-fma", message)


def _threadgroup_memory(
    text: str, functions: dict[str, llvm.Function], debug: llvm.Debug
) -> Iterator[Finding]:
    for entry in [f.removeprefix("mh_entry_") for f in functions if f.startswith("mh_entry_")]:
        variables = llvm.threadgroup_variables(text, functions, entry)
        total = sum(size for _, size in variables)
        called = [functions.get(c.callee) for c in functions[f"mh_entry_{entry}"].calls]
        nodes = [f.node for f in called if f is not None and f.node is not None]
        if total > THREADGROUP_LIMIT and nodes:
            file, line = debug.place(nodes[0])
            sizes = ", ".join(f"{name} {size}" for name, size in variables)
            message = f"{entry}: {total} bytes of threadgroup memory ({sizes}), at most 32768"
            yield Finding(file, line, "threadgroup-memory", message)


def lint_all(
    path: str | os.PathLike[str],
    level: tuple[int, int] | None = None,
    address_spaces: bool = True,
) -> list[Finding]:
    """All findings about a file.  CompileError when the compiler refuses it."""
    return sorted({*lint(path, level), *lint_compiled(path, level, address_spaces)})
