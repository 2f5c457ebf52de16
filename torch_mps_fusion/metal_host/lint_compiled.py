"""The lint's rules that need a compiler: what clang makes of a shader, before any optimisation.

Recursion is looked for in the graph of calls, so an overload that calls another, or a template that calls
itself with a smaller number, is none.  An implicit multiply-add is what clang's own front end would contract.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from . import compiler, rewrite, source
from .lint import Finding, lint, wishes

_METAL_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<metal_\w+>[^\n]*", re.M)
_FUNCTION = re.compile(
    r'^define [^\n]*?@("[^"]+"|[\w.$]+)\([^\n]*?(?:!dbg !(\d+) )?\{\n(.*?)^\}', re.M | re.S
)
_CALL = re.compile(r'^.*?\bcall\b[^@\n]*@("[^"]+"|[\w.$]+)\((.*)$', re.M)
_NODE = re.compile(r"^!(\d+) = (?:distinct )?!(DI\w+)\((.*)\)$", re.M)


@dataclass
class _Function:
    name: str
    node: str | None
    calls: list[tuple[str, str | None]] = field(default_factory=list)  # callee, its location


class _Debug:
    """The places in the debug records of an LLVM text."""

    def __init__(self, text: str):
        self.nodes = {m[1]: (m[2], m[3]) for m in _NODE.finditer(text)}

    def _field(self, node: str, name: str) -> str | None:
        found = re.search(rf"\b{name}: !?([\w.$]+|\"[^\"]*\")", self.nodes[node][1])
        return found[1].strip('"') if found else None

    def file(self, node: str) -> str:
        """The file that a scope lies in."""
        number = self._field(node, "file")
        while number is None and (up := self._field(node, "scope")) in self.nodes:
            node = str(up)
            number = self._field(node, "file")
        return (self._field(number, "filename") or "") if number in self.nodes else ""

    def place(self, node: str) -> tuple[str, int]:
        """(file, line) of a location or a function."""
        line = int(self._field(node, "line") or 0)
        if self.nodes[node][0] == "DILocation":
            return self.file(str(self._field(node, "scope"))), line
        return self.file(node), line

    def name(self, node: str) -> str:
        return self._field(node, "name") or "?"


def _functions(text: str) -> dict[str, _Function]:
    out = {}
    for m in _FUNCTION.finditer(text):
        function = out[m[1]] = _Function(m[1], m[2])
        for call in _CALL.finditer(m[3]):
            at = re.search(r"!dbg !(\d+)", call[2])
            function.calls.append((call[1], at[1] if at else None))
    return out


def _cycles(functions: dict[str, _Function]) -> Iterator[list[str]]:
    """Each function that can reach itself, with the way back."""
    for start in functions:
        ways = [[start]]
        seen: set[str] = set()
        while ways:
            way = ways.pop(0)
            for callee, _ in functions[way[-1]].calls:
                if callee == start:
                    yield way
                    ways = []
                    break
                if callee in functions and callee not in seen:
                    seen.add(callee)
                    ways.append([*way, callee])


def _llvm(path: str, value: int, metal_version: int) -> str:
    """Unoptimised LLVM text of a shader; every function constant has the value."""
    text = source.flatten(path)
    flags = list(compiler.predefined(metal_version))
    code = compiler.preprocess(_METAL_INCLUDE.sub("", text.marked()), flags)
    program = rewrite.rewrite(code)
    values: dict[str | int, object] = {c.index: value for c in program.constants}
    flags += rewrite.constant_flags(program, values, code)
    command = [
        *compiler.compiler().command,
        *compiler.machine_flags(),
        *compiler.LANGUAGE,
        *("-ffp-contract=on", "-O1", "-Xclang", "-disable-llvm-passes", "-g", "-S", "-emit-llvm"),
        *("-I", str(compiler.SHIM), *flags),
    ]
    with tempfile.TemporaryDirectory(dir=compiler.cache_dir(), prefix=".making-") as folder:
        given, out = Path(folder, "shader.cpp"), Path(folder, "shader.ll")
        glue = rewrite.cpu_glue(program)
        given.write_text(f"#include <metal_stdlib>\n{program.text}\n{glue}")
        compiler.invoke([*command, "-o", str(out), str(given)], path)
        return out.read_text()


def lint_compiled(
    path: str | os.PathLike[str], level: tuple[int, int] | None = None
) -> list[Finding]:
    """Findings that need the compiler.  CompileError when it refuses the file."""
    path = os.fspath(path)
    text = source.flatten(path)
    level = level or wishes(Path(path).read_text())[0].level
    explicit = {f for f in (path, *text.files) if wishes(Path(f).read_text())[0].explicit_fma}
    found: set[Finding] = set()
    has_constants = bool(source.function_constants(source.blank_comments(text.text)))
    for value in (0, 1) if has_constants else (0,):
        llvm = _llvm(path, value, level[0] * 100 + level[1] * 10)
        debug, functions = _Debug(llvm), _functions(llvm)
        found |= set(_recursion(functions, debug))
        found |= set(_multiply_adds(functions, debug, explicit))
    return sorted(found)


def _recursion(functions: dict[str, _Function], debug: _Debug) -> Iterator[Finding]:
    for way in _cycles(functions):
        nodes = [functions[name].node for name in way]
        if nodes[0] is None:
            continue
        file, line = debug.place(nodes[0])
        names = [debug.name(n) for n in nodes if n is not None]
        through = " -> ".join([*names, names[0]])
        yield Finding(file, line, "recursion", f"Metal has no recursion: {through}")


def _multiply_adds(
    functions: dict[str, _Function], debug: _Debug, explicit: set[str]
) -> Iterator[Finding]:
    for function in functions.values():
        for callee, at in function.calls:
            if at is None or not callee.startswith("llvm.fmuladd"):
                continue
            file, line = debug.place(at)
            if file in explicit:
                message = "a * b + c may be contracted: write fma(), or round the product first"
                yield Finding(file, line, "implicit-fma", message)


def lint_all(path: str | os.PathLike[str], level: tuple[int, int] | None = None) -> list[Finding]:
    """All findings about a file.  CompileError when the compiler refuses it."""
    return sorted({*lint(path, level), *lint_compiled(path, level)})
