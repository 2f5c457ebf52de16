"""Which braces enclose a statement: namespace, struct, function, kernel.  For the lint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .tokens import Token

_TYPE_WORDS = {"struct", "class", "union"}
_OPENERS = {"(": ")", "[": "]"}


@dataclass(frozen=True)
class Statement:
    """Tokens up to `;`, `{` or `}` at one level, and what encloses them.

    scope: "namespace", "struct", "enum", "function", "kernel" or "init" (braces of an expression).
    ends: the token that ended it: ";", "{", "}" or "".
    """

    tokens: tuple[Token, ...]
    scope: str
    ends: str


def without_attributes(tokens: Sequence[Token]) -> list[Token]:
    """The tokens with every [[attribute]] taken out."""
    out: list[Token] = []
    i = 0
    while i < len(tokens):
        if _attribute(tokens, i):
            depth = 0
            while i < len(tokens):
                depth += (tokens[i].text == "[") - (tokens[i].text == "]")
                i += 1
                if depth == 0:
                    break
        else:
            out.append(tokens[i])
            i += 1
    return out


def _attribute(tokens: Sequence[Token], i: int) -> bool:
    return (
        i + 1 < len(tokens)
        and tokens[i].text == tokens[i + 1].text == "["
        and tokens[i].end == tokens[i + 1].start
    )


def depth_zero(tokens: Sequence[Token]) -> list[Token]:
    """The tokens outside every (...), [...] and template argument list; opening brackets stay."""
    out: list[Token] = []
    depth = 0
    angle = 0
    for k, t in enumerate(tokens):
        if t.text in _OPENERS.values():
            depth -= 1
            continue
        opens = t.text == "<" and k and tokens[k - 1].kind == "id"
        if depth == 0 and opens and tokens[k - 1].text != "operator":
            angle += 1
        if depth == 0 and angle == 0:
            out.append(t)
        if depth == 0 and angle and t.text in (">", ">>"):
            angle -= 1 if t.text == ">" else min(2, angle)
        depth += t.text in _OPENERS
    return out


def _opened(head: Sequence[Token], scope: str) -> str:
    """What the `{` after this head opens, in that scope."""
    plain = without_attributes(head)
    top = [t.text for t in depth_zero(plain)]
    if scope in ("function", "kernel"):
        if _TYPE_WORDS & set(top) and "(" not in top:
            return "struct"
        block = not top or top[-1] in ("(", "else", "do", "try") or ":" in top[-1:]
        return scope if block else "init"
    if scope in ("init", "enum"):
        return "init"
    if "namespace" in top or (top[:1] == ["extern"] and "(" not in top):
        return "namespace"
    if "enum" in top:
        return "enum"
    if "=" in top and "operator" not in top:
        return "init"
    if "(" in top:
        return "kernel" if any(t.text == "kernel" for t in head) else "function"
    return "struct" if _TYPE_WORDS & set(top) else "init"


def statements(tokens: Sequence[Token]) -> Iterator[Statement]:
    """All statements of a file, outermost first in order of their ends."""
    scopes = ["namespace"]
    saved: list[list[Token]] = []  # heads interrupted by the braces of an expression
    current: list[Token] = []
    parens = 0
    for t in tokens:
        if t.text in "([":
            parens += 1
        elif t.text in ")]":
            parens = max(0, parens - 1)
        if t.text == "{" and t.kind == "punct":
            kind = _opened(current, scopes[-1]) if parens == 0 else "init"
            if kind == "init":
                saved.append([*current, t])
            else:
                yield Statement(tuple(current), scopes[-1], "{")
            scopes.append(kind)
            current = []
            continue
        if t.text == "}" and t.kind == "punct":
            kind = scopes.pop() if len(scopes) > 1 else "namespace"
            if kind == "init" and saved:
                current = [*saved.pop(), *current, t]
            else:
                yield Statement(tuple(current), kind, "}")
                current = []
            continue
        if t.text == ";" and parens == 0 and scopes[-1] != "init":
            yield Statement((*current, t), scopes[-1], ";")
            current = []
        else:
            current.append(t)
    yield Statement(tuple(current), scopes[-1], "")
