"""Turns preprocessed MSL into C++ for clang with the shim.

C++ lacks [[attributes]] on parameters, threadgroup variables, function constants, vector
constructors through aliases, and explicit instantiation of kernels. Everything else of a shader
reaches the compiler as it is written. Line numbers are kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from . import source
from .errors import CompileError


@dataclass(frozen=True)
class Entry:
    """A kernel as a host sees it: host name, expression to call, and the declaration."""

    host: str
    callee: str
    decl: source.KernelDecl


@dataclass(frozen=True)
class Program:
    """`text` is C++ (without glue); `entries` are the kernels; `constants` what it may be given."""

    text: str
    entries: tuple[Entry, ...]
    constants: tuple[source.FunctionConstant, ...]


def _spaces(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _lines(text: str) -> str:
    return "\n" * text.count("\n")


_MARKER = re.compile(r'^# \d+ "[^\n]*$', re.M)


def rewrite(preprocessed: str) -> Program:
    """Reads clang -E output of a flattened shader. Raises CompileError naming what is wrong."""
    text = source.blank_comments(preprocessed)
    constants = source.function_constants(text)
    instances = source.instances(text)
    decls = {k.name: k for k in source.kernels(text)}
    entries = [Entry(k.host or k.name, k.name, k) for k in decls.values() if not k.template]
    for one in instances:
        name = one.callee.split("<")[0].strip()
        if name not in decls:
            raise CompileError(f'host_name("{one.host}"): `{name}` is not a kernel template')
        entries.append(Entry(one.host, one.callee, decls[name]))
    seen: set[str] = set()
    for entry in entries:
        if entry.host in seen:
            raise CompileError(f"two kernels have the host name {entry.host}")
        if not re.fullmatch(r"[A-Za-z_]\w*", entry.host):
            raise CompileError(f"host name {entry.host!r} is not an identifier")
        seen.add(entry.host)
    for one in reversed(instances):
        text = text[: one.offset] + _lines(text[one.offset : one.end]) + text[one.end :]
    for fc in reversed(source.function_constants(text)):
        declared = text[fc.start : fc.end]
        new = f"constant constexpr {fc.type} {fc.name} = MSL_CONSTANT_{fc.index};"
        text = text[: fc.start] + new + _lines(declared) + text[fc.end :]
    text = re.sub(
        r"\bis_function_constant_defined\s*\(\s*(\w+)\s*\)",
        lambda m: _defined(m[1], constants),
        text,
    )
    text = re.sub(r"\[\[.*?\]\]", lambda m: _spaces(m[0]), text, flags=re.S)
    text = re.sub(r"\bvolatile\b", _spaces("volatile"), text)
    text = re.sub(r"(?<![\w.])(\d*\.?\d+\.?(?:[eE][+-]?\d+)?)(?:bf|BF)\b", _bfloat_literal, text)
    return Program(_threadgroup_variables(_constructors(text)), tuple(entries), tuple(constants))


def _bfloat_literal(match: re.Match[str]) -> str:
    """clang has another meaning for the suffix bf."""
    number = match[1] if re.search(r"[.eE]", match[1]) else match[1] + ".0"
    return f"((bfloat){number}f)"


def _defined(name: str, constants: list[source.FunctionConstant]) -> str:
    for constant in constants:
        if constant.name == name:
            return f"MSL_CONSTANT_DEFINED_{constant.index}"
    raise CompileError(f"is_function_constant_defined({name}): there is no such constant")


_VECTOR = r"(?:metal::)?vec\s*<[^<>;(){}]*>"


def _constructors(text: str) -> str:
    """V(a, b, ...) where V is vec<...>, an alias or a template parameter: msl::make<V>(...)."""
    names = set(re.findall(r"\btypedef\s+[^;{}]+?\s(\w+)\s*;", text))
    names |= set(re.findall(r"\busing\s+(\w+)\s*=", text))
    for params in re.findall(r"\btemplate\s*<([^{};()]*)>", text):
        names |= set(re.findall(r"\b(?:typename|class)\s+(\w+)", params))
    choices = [_VECTOR, *map(re.escape, sorted(names, key=len, reverse=True))]
    pattern = rf"(?<![\w.>:~])({'|'.join(choices)})\s*\((?!\s*[*&])"
    text = re.sub(pattern, r"msl::make<\1>(", text)
    vectors = r"(?:bool|u?char|u?short|u?int|u?long|half|bfloat|float)[234]"
    casts = rf"\bstatic_cast\s*<\s*({'|'.join([vectors, *choices])})\s*>\s*\("
    return re.sub(casts, r"msl::make<\1>(", text)


_DIMENSIONED = r"\w+\s*(?:\[[^;=]*?\]\s*)*"
_THREADGROUP = re.compile(
    r"(?<=[;{}\n])(\s*)threadgroup\s+((?:struct\s+)?[\w:]+(?:\s*<[^;>]*>)?)\s+"
    rf"({_DIMENSIONED}(?:,\s*{_DIMENSIONED})*);"
)


def _threadgroup_variables(text: str) -> str:
    """`threadgroup T x[n];` becomes a type and MSL_THREADGROUP(x), which asks the target."""

    def one(match: re.Match[str]) -> str:
        out = match[1]
        for declared in source.split_commas(match[3].strip()):
            found = re.match(r"\s*(\w+)\s*(.*)$", declared, re.S)
            assert found is not None
            name, dims = found.groups()
            out += f"typedef {match[2].strip()} msl_type_{name} {dims.strip()}; "
            out += f"MSL_THREADGROUP({name}) "
        return out + "\n" * (match[0].count("\n") - match[1].count("\n"))

    return _THREADGROUP.sub(one, text)


_ARGUMENT = {"device": "MSL_DEVICE", "constant": "MSL_CONSTANT", "threadgroup": "MSL_LOCAL"}


def call(entry: Entry, values: Sequence[int] = ()) -> str:
    """The call of a kernel with its arguments, each through a macro of the target.

    values: buffer indices of the constant references that a launch passes by value, by slot.
    """

    def argument(p: source.Parameter) -> str:
        if p.kind == "builtin":
            return f"MSL_BUILTIN({p.builtin})"
        if p.kind == "constant" and p.index in values:
            return f"MSL_VALUE({values.index(p.index)})"
        return f"{_ARGUMENT[p.kind]}({p.index})"

    return f"{entry.callee}({', '.join(map(argument, entry.decl.parameters))});"


def cpu_glue(program: Program) -> str:
    """Entry functions and parameter tables for this machine, to follow the program."""
    out = []
    for e in program.entries:
        out.append(f"MSL_ENTRY({e.host}) {{ {call(e)} }}")
        out.append(f"MSL_DESCRIBE({e.host}, {e.callee})")
    return "\n".join(out) + "\n"


def constant_flags(
    program: Program, given: Mapping[str | int, object], source_text: str
) -> list[str]:
    """-D flags that give the function constants their values; refuses unknown and missing ones."""
    by_key = {c.name: c for c in program.constants} | {c.index: c for c in program.constants}
    values: dict[int, str] = {}
    for key, value in given.items():
        found = by_key.get(key)
        if found is None:
            known = ", ".join(f"{c.name} ({c.index})" for c in program.constants) or "none"
            raise CompileError(f"constants[{key!r}]: no such function constant; there are: {known}")
        values[found.index] = _literal(found, value)
    flags = []
    for c in program.constants:
        present = c.index in values
        if not present and not re.search(
            rf"is_function_constant_defined\s*\(\s*{c.name}\b", source_text
        ):
            raise CompileError(
                f"constants: function constant {c.name} ({c.index}, {c.type}) has no value; "
                f"give one with constants={{{c.name!r}: ...}} or --constant {c.name}=..."
            )
        flags.append(f"-DMSL_CONSTANT_{c.index}={values.get(c.index, c.type + '{}')}")
        flags.append(f"-DMSL_CONSTANT_DEFINED_{c.index}={str(present).lower()}")
    return flags


def _number(value: float) -> str:
    if value != value:
        return '__builtin_nanf("")'
    if value in (float("inf"), float("-inf")):
        return f"{'-' if value < 0 else ''}__builtin_inff()"
    return f"{value!r}f"


def _literal(constant: source.FunctionConstant, value: object) -> str:
    where = f"constants[{constant.name!r}]"
    if constant.type == "bool":
        if value in (True, False, 0, 1):
            return "true" if value else "false"
        raise CompileError(f"{where}: {value!r} is not a bool")
    if hasattr(value, "item"):
        value = value.item()
    if constant.type in ("float", "half", "bfloat"):
        if isinstance(value, (int, float)):
            return f"({constant.type})({_number(float(value))})"
        raise CompileError(f"{where}: {value!r} is not a number")
    whole = re.fullmatch(r"(u?)(int|short|char|long)(8|16|32|64)?(?:_t)?", constant.type)
    if isinstance(value, int) and whole:
        bits = int(whole[3] or {"char": 8, "short": 16, "int": 32, "long": 64}[whole[2]])
        low, high = (0, 2**bits - 1) if whole[1] else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        if not low <= value <= high:
            raise CompileError(f"{where}: {value} does not fit {constant.type}")
        return f"({constant.type})({value}{'u' if constant.type.startswith('u') else ''})"
    raise CompileError(f"{where}: {value!r} is not a value of type {constant.type}")
