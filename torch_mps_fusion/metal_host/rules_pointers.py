"""The lint's rule on pointers and references: each names the address space it points into."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from .preprocess import Reading
from .tokens import Token

SPACES = frozenset(
    {
        "device",
        "constant",
        "thread",
        "threadgroup",
        "threadgroup_imageblock",
        "object_data",
        "ray_data",
    }
)
_QUALIFIERS = frozenset(
    {
        "const",
        "volatile",
        "static",
        "inline",
        "constexpr",
        "typename",
        "restrict",
        "coherent",
        "extern",
        "signed",
    }
)
_SCALARS = re.compile(
    r"void|bool|char|uchar|short|ushort|int|uint|long|ulong|half|bfloat|float|auto|unsigned|signed"
    r"|size_t|ptrdiff_t|u?int(8|16|32|64|ptr)_t"
)
_BUILT_IN = re.compile(
    r"(bool|u?char|u?short|u?int|u?long|half|bfloat|float)[234]|packed_\w+|(half|float)[234]x[234]"
    r"|atomic_(u?int|float|bool|u?long)|simdgroup_\w*8x8|vec|array|atomic|simdgroup_matrix"
)
_BEFORE_A_TYPE = frozenset(["(", ",", ";", "{", "}", "<", ">", "=", ":", "[", "return", "operator"])


def known_types(tokens: Sequence[Token]) -> set[str]:
    """Names of the types that the tokens declare."""
    names: set[str] = set()
    for i, t in enumerate(tokens[:-1]):
        after = tokens[i + 1]
        declared = t.text in ("struct", "class", "union", "enum", "typename") and after.kind == "id"
        if declared or (t.text == "using" and [x.text for x in tokens[i + 2 : i + 3]] == ["="]):
            names.add(after.text)
        elif t.text == "typedef":
            end = next((k for k in range(i, len(tokens)) if tokens[k].text == ";"), len(tokens))
            ids = [x.text for x in tokens[i + 1 : end] if x.kind == "id"]
            names.update(ids[-1:])
    return names


def _angle_open(tokens: Sequence[Token], i: int) -> int | None:
    """Index of the `<` that the `>` at index i closes, if it looks like template arguments."""
    depth = 0
    for k in range(i, max(-1, i - 64), -1):
        text = tokens[k].text
        depth += (text == ">") + 2 * (text == ">>") - (text == "<")
        if depth <= 0:
            return k
        if text in (";", "{", "}", "&&", "||"):
            return None
    return None


def _type_before(tokens: Sequence[Token], i: int, types: set[str]) -> tuple[bool, bool]:
    """(is there a type right before index i, does it or its qualifiers name an address space)"""
    k, space = i - 1, False
    seen_type = False
    while k >= 0:
        t = tokens[k]
        if t.text in SPACES:
            space = True
        elif t.text == ")" and (back := _coherent(tokens, k)) is not None:
            k = back
        elif t.text in _QUALIFIERS:
            pass
        elif (
            not seen_type
            and t.text in (">", ">>")
            and (open_ := _angle_open(tokens, k)) is not None
        ):
            k = open_
            if k < 1 or not _is_type(tokens[k - 1], types):
                return False, False
            seen_type = True
            k -= 1
        elif _is_type(t, types) and (not seen_type or t.text in ("unsigned", "signed", "long")):
            seen_type = True
        elif seen_type and t.text == "::":
            k -= 1  # the namespace before it
        else:
            break
        k -= 1
    begins = k < 0 or tokens[k].text in _BEFORE_A_TYPE or tokens[k].text in ("]", ")")
    return seen_type and begins and not _is_attribute_index(tokens, k), space


def _is_attribute_index(tokens: Sequence[Token], k: int) -> bool:
    """A `]` that ends a subscript, not an [[attribute]], is no place where a type begins."""
    return k > 0 and tokens[k].text == "]" and tokens[k - 1].text != "]"


def _coherent(tokens: Sequence[Token], k: int) -> int | None:
    """Index of `coherent` where the `)` at index k ends coherent(...)."""
    if k >= 3 and tokens[k - 2].text == "(" and tokens[k - 3].text == "coherent":
        return k - 3
    return None


def _is_type(t: Token, types: set[str]) -> bool:
    return t.kind == "id" and (
        t.text in types or any(p.fullmatch(t.text) for p in (_SCALARS, _BUILT_IN))
    )


def pointers(
    reading: Reading, level: tuple[int, int]
) -> Iterator[tuple[tuple[str, int], str, str]]:
    """`float* p`, `T& r` and `(float*)x` without device, constant, thread or threadgroup."""
    types = known_types(reading.tokens)
    for stream in [reading.tokens, *reading.used_macro_bodies()]:
        declarators: set[int] = set()
        for i, t in enumerate(stream):
            if t.text not in ("*", "&") or t.kind != "punct":
                continue
            found, space = _outer(stream, i, declarators) or _type_before(stream, i, types)
            if not found or not _declares(stream, i):
                continue
            declarators.add(i)
            if not space:
                what = "pointer" if t.text == "*" else "reference"
                yield (
                    (t.file, t.line),
                    "address-space",
                    f"a {what} needs an address space before {t.text}",
                )


def _outer(stream: Sequence[Token], i: int, declarators: set[int]) -> tuple[bool, bool] | None:
    """For the second star of `device float* thread*`: (True, is a space between the stars)."""
    k, space = i - 1, False
    while k >= 0 and (stream[k].text in SPACES or stream[k].text in _QUALIFIERS):
        space = space or stream[k].text in SPACES
        k -= 1
    return (True, space) if k in declarators else None


def _declares(stream: Sequence[Token], i: int) -> bool:
    """Whether what follows a `*` or `&` can be a declarator or the end of a type."""
    if i + 1 >= len(stream):
        return True
    after = stream[i + 1]
    if after.kind == "id":
        return True
    return after.text in (")", ",", ">", "*", "&", "[", "...", ">>", "(", ";", "=")
