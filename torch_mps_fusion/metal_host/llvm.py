"""Unoptimised LLVM text of a shader, with places: what the compiler made of it before any choice.

This is read as text.  It says which function calls which, and where each line came from.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from . import build, compiler, rewrite, source

_FUNCTION = re.compile(
    r'^define [^\n]*?@("[^"]+"|[\w.$]+)\([^\n]*?(?:!dbg !(\d+) )?\{\n(.*?)^\}', re.M | re.S
)
_CALL = re.compile(r'^.*?\bcall\b[^@\n]*@("[^"]+"|[\w.$]+)\((.*)$', re.M)
_NODE = re.compile(r"^!(\d+) = (?:distinct )?!(DI\w+)\((.*)\)$", re.M)


@dataclass(frozen=True)
class Call:
    """A call in a function: who is called, with what, from which location record (or None)."""

    callee: str
    arguments: str
    location: str | None


@dataclass
class Function:
    """A function that has a body, and its own debug record, or None for library code."""

    name: str
    node: str | None
    calls: list[Call] = field(default_factory=list)


class Debug:
    """The debug records of an LLVM text."""

    def __init__(self, text: str):
        self.nodes = {m[1]: (m[2], m[3]) for m in _NODE.finditer(text)}

    def _field(self, node: str, name: str) -> str | None:
        fields = self.nodes.get(node, ("", ""))[1]
        found = re.search(rf"\b{name}: !?([\w.$]+|\"[^\"]*\")", fields)
        return found[1].strip('"') if found else None

    def file(self, node: str) -> str:
        """The file that a scope lies in."""
        number = self._field(node, "file")
        while number is None and (up := self._field(node, "scope")) is not None:
            node = up
            number = self._field(node, "file")
        return (number and self._field(number, "filename")) or ""

    def place(self, node: str) -> tuple[str, int]:
        """(file, line) of a location or a function."""
        line = int(self._field(node, "line") or 0)
        if self.nodes[node][0] == "DILocation":
            return self.file(str(self._field(node, "scope"))), line
        return self.file(node), line

    def name(self, node: str) -> str:
        """The name of a function, with its template arguments."""
        return self._field(node, "name") or "?"


def functions(text: str) -> dict[str, Function]:
    """The functions of an LLVM text that have a body, by their names in it."""
    out = {}
    for m in _FUNCTION.finditer(text):
        function = out[m[1]] = Function(m[1], m[2])
        for call in _CALL.finditer(m[3]):
            at = re.search(r"!dbg !(\d+)", call[2])
            function.calls.append(Call(call[1], call[2], at[1] if at else None))
    return out


def threadgroup_variables(
    text: str, functions: dict[str, Function], kernel: str
) -> tuple[tuple[str, int], ...]:
    """Name and bytes of each threadgroup variable of a kernel (host name), and of what it calls."""
    strings = dict(re.findall(r'^@([\w.]+) = .*? c"(.*?)\\00"', text, re.M))
    out: dict[str, tuple[str, int]] = {}
    todo = [f"mh_entry_{kernel}"]
    seen = set(todo)
    while todo:
        for call in functions[todo.pop()].calls:
            if call.callee == "mh_threadgroup":  # key, bytes, alignment, name, place
                key, name = re.findall(r"@([\w.]+)", call.arguments)[:2]
                size = re.findall(r"\bi64 (?:noundef )?(\d+)", call.arguments)[0]
                out[key] = (strings.get(name, name), int(size))
            elif call.callee in functions and call.callee not in seen:
                seen.add(call.callee)
                todo.append(call.callee)
    return tuple(out.values())


def unoptimised(path: str, value: int, metal_version: int, address_spaces: bool = True) -> str:
    """Unoptimised LLVM text of a shader; every function constant has the value.

    address_spaces: as for Library.  CompileError when the shader is refused.
    """
    text = source.flatten(path)
    flags = list(compiler.predefined(metal_version))
    program = build.prepare(text, flags)
    values: dict[str | int, object] = {c.index: value for c in program.constants}
    flags += rewrite.constant_flags(program, values, text.text)
    command = [
        *compiler.compiler().command,
        *compiler.machine_flags(),
        *compiler.LANGUAGE,
        *("-ffp-contract=on", "-O1", "-Xclang", "-disable-llvm-passes", "-g", "-S", "-emit-llvm"),
        *("-I", str(compiler.SHIM), *flags),
        *(() if address_spaces else ("-DMSL_NO_ADDRESS_SPACES",)),
    ]
    with tempfile.TemporaryDirectory(dir=compiler.cache_dir(), prefix=".making-") as folder:
        given, out = Path(folder, "shader.cpp"), Path(folder, "shader.ll")
        glue = rewrite.cpu_glue(program)
        given.write_text(f"#include <metal_stdlib>\n{program.text}\n{glue}")
        compiler.invoke([*command, "-o", str(out), str(given)], path)
        return out.read_text()
