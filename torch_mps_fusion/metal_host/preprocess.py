"""What the preprocessor would leave of a Metal source file, as tokens, for the lint.

Conditions on macros that nobody defines are looked at both ways (two readings), so that neither
branch hides.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from .tokens import Source, Token, lex

# never defined when Apple's compiler reads the file: branches that only this package's builds take
HOST_ONLY = frozenset(
    {"MSL_GPU", "MSL_TICKS", "MSL_HOST", "MSL_SHIM", "MSL_CHECK", "__NVPTX__", "__clang_host__"}
)


@dataclass
class Include:
    """An #include that was met: its target, as written, and its place."""

    target: str
    file: str
    line: int


@dataclass
class Reading:
    """One way through the conditions: the code's tokens, macro bodies by name, other lines."""

    tokens: list[Token] = field(default_factory=list)
    macros: dict[str, list[Token]] = field(default_factory=dict)
    pragmas: list[tuple[str, str, int, int]] = field(
        default_factory=list
    )  # text, file, line, tokens before
    includes: list[Include] = field(default_factory=list)

    def used_macro_bodies(self) -> list[list[Token]]:
        """Bodies of the macros that the code names, directly or through another macro."""
        todo = [t.text for t in self.tokens if t.text in self.macros]
        seen: set[str] = set()
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo += [t.text for t in self.macros[name] if t.text in self.macros]
        return [body for name, body in self.macros.items() if name in seen]


class Reader:
    """Follows local includes and conditions.

    load: path -> text, or None where there is no such file.  version: __METAL_VERSION__.
    assume: whether a macro that nobody defines counts as defined.
    """

    def __init__(self, load: Callable[[str], str | None], version: int, assume: bool):
        self.load = load
        self.assume = assume
        self.defined = {
            "__METAL__": "1",
            "__METAL_VERSION__": str(version),
            "__cplusplus": "201402",
        }
        self.undefined = set(HOST_ONLY)
        self.out = Reading()
        self.once: set[str] = set()
        self.sources: dict[str, Source] = {}

    def read(self, path: str, text: str) -> Reading:
        """The reading of one file, named path, and of what it includes."""
        self._file(path, text, 0)
        return self.out

    def _file(self, path: str, text: str, depth: int) -> None:
        source = self.sources[path] = lex(text, path)
        waiting = list(source.tokens)[::-1]
        active: list[
            list[bool]
        ] = []  # a condition: [taken now, some branch was taken, outside active]

        def on() -> bool:
            return all(c[0] for c in active)

        for d in source.directives:
            self._take(waiting, d.start, on())
            if d.word in ("if", "ifdef", "ifndef"):
                taken = on() and self._condition(d.word, d.rest)
                active.append([taken, taken])
            elif d.word in ("elif", "else") and active:
                top = active.pop()
                taken = not top[1] and on() and (d.word == "else" or self._value(d.rest))
                active.append([taken, top[1] or taken])
            elif d.word == "endif" and active:
                active.pop()
            elif on():
                self._plain(path, d.word, d.rest, d.line, depth)
        self._take(waiting, len(text) + 1, on())

    def _take(self, waiting: list[Token], until: int, on: bool) -> None:
        while waiting and waiting[-1].start < until:
            t = waiting.pop()
            if on and t.macro is None:
                self.out.tokens.append(t)
            elif on and t.macro is not None:
                self.out.macros.setdefault(t.macro, []).append(t)

    def _plain(self, path: str, word: str, rest: str, line: int, depth: int) -> None:
        if word == "define" and (m := re.match(r"(\w+)(\([^)]*\))?\s*(.*)", rest, re.S)):
            self.defined[m[1]] = m[3].strip() if m[2] is None else ""
            self.out.macros.setdefault(m[1], [])
        elif word == "undef":
            self.defined.pop(rest, None)
            self.undefined.add(rest)
        elif word == "pragma" and rest.split() == ["once"]:
            self.once.add(path)
        elif word == "pragma":
            self.out.pragmas.append((rest, path, line, len(self.out.tokens)))
        elif word in ("include", "import"):
            self._include(path, rest, line, depth)

    def _include(self, path: str, rest: str, line: int, depth: int) -> None:
        m = re.match(r'"([^"]+)"|<([^>]+)>', rest)
        if not m or depth > 64:
            return
        self.out.includes.append(Include(rest, path, line))
        if m[1] is None:
            return
        target = os.path.normpath(os.path.join(os.path.dirname(path), m[1]))
        text = None if target in self.once else self.load(target)
        if text is not None:
            self._file(target, text, depth + 1)

    def _condition(self, word: str, rest: str) -> bool:
        if word == "if":
            return self._value(rest)
        name = rest.split()[0] if rest.split() else ""
        return self._is_defined(name) == (word == "ifdef")

    def _is_defined(self, name: str) -> bool:
        return name in self.defined or (name not in self.undefined and self.assume)

    def _number(self, name: str, depth: int = 0) -> str:
        if name in self.defined:
            value = self.defined[name]
            if re.fullmatch(r"\d+", value):
                return value
            if re.fullmatch(r"[A-Za-z_]\w*", value) and depth < 16:
                return self._number(value, depth + 1)
            return str(int(self.assume))
        return "0" if name in self.undefined else str(int(self.assume))

    def _value(self, expression: str) -> bool:
        """An #if expression; what it does not understand counts as the assumption."""
        e = re.sub(
            r"\bdefined\s*(?:\(\s*(\w+)\s*\)|(\w+))",
            lambda m: f" {int(self._is_defined(m[1] or m[2]))} ",
            expression,
        )
        e = re.sub(r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]*\b", lambda m: str(int(m[1], 0)), e)
        e = re.sub(
            r"\b[A-Za-z_]\w*\b(\s*\([^()]*\))?", lambda m: self._number(m[0].split("(")[0]), e
        )
        if not re.fullmatch(r"[\d\s()<>=!&|+*/%-]*", e) or "**" in e:
            return self.assume
        e = re.sub(r"!(?!=)", " not ", e.replace("&&", " and ").replace("||", " or "))
        try:
            return bool(eval(e, {"__builtins__": {}}))  # digits and operators only, checked above
        except Exception:
            return self.assume


def readings(
    path: str, text: str, load: Callable[[str], str | None], version: int
) -> list[Reading]:
    """Both readings of a file: unknown macros all defined, and none defined."""
    return [Reader(load, version, assume).read(path, text) for assume in (False, True)]
