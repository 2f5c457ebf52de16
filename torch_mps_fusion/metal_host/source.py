"""Reading MSL text: includes, tokens, kernels and function constants.

Nothing here compiles or rewrites. `flatten` makes one text of a file and its local includes;
`kernels`, `instances` and `function_constants` say what a text declares.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import CompileError, Location

BUILTINS = (
    "thread_position_in_grid",
    "thread_position_in_threadgroup",
    "threadgroup_position_in_grid",
    "threads_per_threadgroup",
    "threadgroups_per_grid",
    "threads_per_grid",
    "thread_index_in_threadgroup",
    "simdgroup_index_in_threadgroup",
    "thread_index_in_simdgroup",
    "simdgroups_per_threadgroup",
    "dispatch_simdgroups_per_threadgroup",
    "threads_per_simdgroup",
    "dispatch_threads_per_threadgroup",
    "thread_execution_width",
    "quadgroup_index_in_threadgroup",
    "thread_index_in_quadgroup",
)


MAX_INDEX = 30  # of a buffer or a threadgroup parameter


@dataclass(frozen=True)
class Source:
    """A file with its local includes put in place.

    `lines[i]` is where line i + 1 of `text` came from; `files` are all files read.
    """

    path: str
    text: str
    lines: tuple[Location, ...]
    files: tuple[str, ...]

    def location(self, line: int) -> Location:
        """Where line `line` (from 1) of `text` was written."""
        return self.lines[min(max(line, 1), len(self.lines)) - 1]

    def marked(self) -> str:
        """`text` with #line directives, so that a compiler reports the original places."""
        out, expected = [], None
        for text, at in zip(self.text.split("\n"), self.lines, strict=True):
            if at != expected:
                out.append(f'#line {at.line} "{at.file}"')
            out.append(text)
            expected = Location(at.file, at.line + 1)
        return "\n".join(out) + "\n"


@dataclass(frozen=True)
class Parameter:
    """A kernel parameter.

    kind: device, constant, threadgroup or builtin. `index` is the buffer or threadgroup index, or
    None; `builtin` the attribute of a builtin. `optional` holds the function constant that
    switches the parameter on, if one does.
    """

    name: str
    kind: str
    index: int | None
    type: str
    builtin: str | None = None
    optional: str | None = None


@dataclass(frozen=True)
class KernelDecl:
    """A kernel as written: `name` of the function; `max_threads` and `host` (the name that a host
    sees) from its attributes, or None."""

    name: str
    parameters: tuple[Parameter, ...]
    template: bool
    offset: int
    max_threads: int | None = None
    host: str | None = None


@dataclass(frozen=True)
class Instance:
    """An explicit instantiation: `callee`, such as `f<float, 4>`, under the name `host`."""

    host: str
    callee: str
    offset: int
    end: int


@dataclass(frozen=True)
class FunctionConstant:
    name: str
    type: str
    index: int
    start: int
    end: int


# ---------------------------------------------------------------- includes

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"[^\n]*$')
_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b", re.M)


def flatten(
    path: str | Path, include_dirs: Sequence[str | Path] = (), text: str | None = None
) -> Source:
    """Reads `path` (or takes `text` as its content) and puts local includes in place.

    Raises CompileError, naming the place, for an include that is nowhere.
    """
    lines: list[str] = []
    origin: list[Location] = []
    files: list[str] = []
    done: set[str] = set()

    def find(name: str, here: Path, at: Location) -> Path:
        for folder in [here, *map(Path, include_dirs)]:
            if (folder / name).is_file():
                return folder / name
        looked = ", ".join(str(p) for p in [here, *include_dirs])
        raise CompileError(f'{at}: include "{name}" not found (looked in {looked})')

    def add(file: Path, stack: tuple[str, ...], given: str | None = None) -> None:
        key = str(file.resolve())
        if key in stack or key in done:
            return
        if given is None:
            try:
                given = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise CompileError(f"{file}: cannot be read: {error}") from None
            files.append(str(file))
        if _ONCE.search(blank_comments(given)):
            done.add(key)
        visible = blank_comments(given, strings=False).split("\n")
        for number, line in enumerate(given.removesuffix("\n").split("\n"), 1):
            at = Location(str(file), number)
            match = _INCLUDE.match(visible[number - 1])
            if match:
                add(find(match[1], file.parent, at), (*stack, key))
            else:
                lines.append("" if _ONCE.match(visible[number - 1]) else line.removesuffix("\r"))
                origin.append(at)

    add(Path(path), (), text)
    return Source(str(path), "\n".join(lines), tuple(origin), tuple(files))


# ---------------------------------------------------------------- text

_LEX = re.compile(
    r"""(?P<comment>//(?:[^\n\\]|\\.|\\\n)*|/\*.*?\*/)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | \d(?:[\w.]|(?<=[\w])'(?=\w))*""",  # a number, whose ' opens no string
    re.X | re.S,
)


def _spaces(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def blank_comments(text: str, strings: bool = False) -> str:
    """The same text, offsets and lines kept, with comments (and string contents) blanked."""

    def one(match: re.Match[str]) -> str:
        if match["comment"]:
            return _spaces(match[0])
        if strings and match["string"]:
            return match[0][0] + _spaces(match[0][1:-1]) + match[0][-1]
        return match[0]

    return _LEX.sub(one, text)


def closing(text: str, start: int) -> int:
    """Offset of the bracket that closes the one at `start`; comments must be blanked."""
    pairs = {"(": ")", "[": "]", "{": "}", "<": ">"}
    opened, closed = text[start], pairs[text[start]]
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == opened) - (text[i] == closed)
        if depth == 0:
            return i
    raise CompileError(f"{place(text, start)}: unbalanced {opened}")


_MARKER = re.compile(r'^#(?:line)? (\d+) "((?:[^"\\\n]|\\.)*)"', re.M)


def place(text: str, offset: int) -> str:
    """FILE:LINE of an offset, by the last line marker before it; "line N" if there is none."""
    markers = list(_MARKER.finditer(text, 0, offset))
    if not markers:
        return f"line {text.count(chr(10), 0, offset) + 1}"
    marker = markers[-1]
    begin = text.find("\n", marker.end()) + 1
    return f"{marker[2]}:{int(marker[1]) + text.count(chr(10), begin, offset)}"


def split_commas(text: str) -> list[str]:
    """Splits at commas outside of brackets."""
    out, depth, current = [], 0, ""
    for ch in text:
        depth += (ch in "(<[{") - (ch in ")>]}")
        if ch == "," and depth == 0:
            out.append(current)
            current = ""
        else:
            current += ch
    return [*out, current] if current.strip() else out


# ---------------------------------------------------------------- declarations

_ATTRIBUTES = re.compile(r"\[\[(.*?)\]\]", re.S)
_KERNEL = re.compile(
    r"(?:\[\[\s*kernel\b[^\]]*\]\]|\bkernel\b)\s*(?:\[\[[^\]]*\]\]\s*)*void\s+(\w+)\s*\("
)
_NOT_VOID = re.compile(
    r"\bkernel\b\s*(?:\[\[[^\]]*\]\]\s*)*(?!void\b|return\b|inline\b|static\b)(\w[\w:]*)\s+(\w+)\s*\("
)
_INSTANCE = re.compile(
    r'\btemplate\s*\[\[\s*host_name\s*\(\s*((?:"[^"]*"\s*)+)\)[^\]]*\]\]'
    r"(?=[^;]*?(\b\w+\s*<[^;()]*>)\s*[(;])[^;]*;"
)
_CONSTANT = re.compile(
    r"\bconstant\s+([\w:]+)\s+(\w+)\s*\[\[\s*function_constant\s*\(\s*(\d+)\s*\)\s*\]\]\s*;"
)


def attributes(text: str) -> dict[str, str | None]:
    """Attributes in [[...]] of `text`: name to argument, or None where there is none."""
    found: dict[str, str | None] = {}
    for group in _ATTRIBUTES.findall(text):
        for one in split_commas(group):
            match = re.match(r"\s*([\w:]+)\s*(?:\((.*)\))?\s*$", one, re.S)
            if match:
                found[match[1]] = match[2].strip() if match[2] is not None else None
    return found


def _parameter(text: str, where: str) -> Parameter:
    found = attributes(text)
    plain = re.sub(r"\s+", " ", _ATTRIBUTES.sub("", text)).strip()
    match = re.search(r"\(\s*[&*]\s*(\w+)\s*\)|(\w+)\s*$", plain)
    name = (match[1] or match[2]) if match else ""
    kind_text = plain.replace(name, "", 1) if match and match[1] else plain.removesuffix(name)
    kind_text = kind_text.strip()
    optional = found.get("function_constant")
    if "buffer" in found:
        kind = "constant" if re.search(r"\bconstant\b", kind_text) else "device"
        return Parameter(name, kind, _index(found["buffer"], where), kind_text, None, optional)
    if "threadgroup" in found:
        return Parameter(name, "threadgroup", _index(found["threadgroup"], where), kind_text)
    for attribute in found:
        if attribute in BUILTINS:
            return Parameter(name, "builtin", None, kind_text, attribute)
    given = ", ".join(found) or "none"
    raise CompileError(
        f"{where}: parameter `{plain}` needs [[buffer(n)]], [[threadgroup(n)]] or a compute "
        f"built-in that metal_host has; it has {given}"
    )


def _index(value: str | None, where: str) -> int:
    if value is None or not value.isdigit():
        raise CompileError(f"{where}: index `{value}` of a parameter is not a number")
    return int(value)


def _check_indices(params: Sequence[Parameter], where: str) -> None:
    """Refuses indices above 30 and, unless function constants choose, those that come twice."""
    taken: dict[tuple[str, int], str] = {}
    for p in params:
        if p.index is None:
            continue
        space = "threadgroup" if p.kind == "threadgroup" else "buffer"
        if p.index > MAX_INDEX:
            raise CompileError(
                f"{where}: [[{space}({p.index})]] of `{p.name}`: the last index is {MAX_INDEX}"
            )
        other = taken.get((space, p.index))
        if other is not None and not p.optional:
            raise CompileError(f"{where}: `{other}` and `{p.name}` are both [[{space}({p.index})]]")
        if not p.optional:
            taken[space, p.index] = p.name


def kernels(text: str) -> list[KernelDecl]:
    """Kernels declared in `text` (comments blanked, macros expanded)."""
    out = []
    for match in _NOT_VOID.finditer(text):
        at = place(text, match.start())
        raise CompileError(f"{at}: kernel {match[2]}: a kernel returns void, not {match[1]}")
    for match in _KERNEL.finditer(text):
        end = closing(text, match.end() - 1)
        where = f"{place(text, match.start(1))}: kernel {match[1]}"
        params = tuple(_parameter(p, where) for p in split_commas(text[match.end() : end]))
        _check_indices(params, where)
        begin = max(text.rfind("}", 0, match.start()), text.rfind(";", 0, match.start())) + 1
        head = text[begin : match.end()]
        found = attributes(head)
        limit = found.get("max_total_threads_per_threadgroup")
        host = found.get("host_name")
        out.append(
            KernelDecl(
                match[1],
                params,
                bool(re.search(r"\btemplate\s*<", head)),
                match.start(),
                int(limit) if limit and limit.isdigit() else None,
                host.strip('"') if host else None,
            )
        )
    return out


def instances(text: str) -> list[Instance]:
    """Explicit instantiations with a host name in `text` (comments blanked, macros expanded)."""
    out = []
    for match in _INSTANCE.finditer(text):
        host = "".join(re.findall(r'"([^"]*)"', match[1]))
        callee = re.sub(r"\s+", " ", match[2])
        out.append(Instance(host, callee, match.start(), match.end()))
    return out


def function_constants(text: str) -> list[FunctionConstant]:
    """Function constants declared in `text` (comments blanked, macros expanded)."""
    return [
        FunctionConstant(m[2], m[1], int(m[3]), m.start(), m.end())
        for m in _CONSTANT.finditer(text)
    ]
