"""Reads metal-cpp's headers: for each class and selector, the type encodings of its methods."""

from __future__ import annotations

import re
from pathlib import Path

# What a C++ type of metal-cpp is as an Objective-C type encoding, and its size in bytes.
PLAIN = {
    "void": "v",
    "bool": "B",
    "const void*": "r^v",
    "const char*": "r*",
    "NS::UInteger": "Q",
    "uint64_t": "Q",
    "NS::Integer": "q",
    "MTL::Size": "{?=QQQ}",
    "NS::Error**": "^@",
}
SIZES = {"B": 4, "{?=QQQ}": 24}

_SELECTOR = re.compile(r'_(?:MTL|NS)_PRIVATE_DEF_SEL\(\s*(\w+)\s*,\s*"([^"]+)"')
_ENUM = re.compile(r"_(?:MTL|NS)_(?:ENUM|OPTIONS)\(\s*([\w:]+)\s*,\s*(\w+)\s*\)")
_METHOD = re.compile(
    r"_(?:MTL|NS)_INLINE\s+([\w:&* ]+?)\s*\b(MTL|NS)::(\w+)::\w+\(([^)]*)\)[^{;]*"
    r"\{[^}]*?_(?:MTL|NS)_PRIVATE_SEL\((\w+)\)"
)


def encoding(result: str, arguments: list[str], enums: dict[str, str]) -> str | None:
    """The method's type encoding; None if a type is not one that we know how to encode."""
    types = [_one(t, enums) for t in (result, *arguments)]
    if None in types:
        return None
    at, text = 16, ""
    for t in types[1:]:
        assert t is not None
        text += f"{t}{at}"
        at += SIZES.get(t, 8)
    return f"{types[0]}{at}@0:8{text}"


def _one(text: str, enums: dict[str, str]) -> str | None:
    text = re.sub(r"\s+", " ", text).strip().removeprefix("class ")
    if text in PLAIN:
        return PLAIN[text]
    if text in enums:
        return enums[text]
    return "@" if re.fullmatch(r"(const )?(class )?[\w:]+\*", text) else None


def _type(argument: str) -> str:
    """Without the name: "const NS::String* name" is "const NS::String*"."""
    return re.sub(r"\s*\b\w+$", "", argument.strip())


def load(folder: Path) -> dict[tuple[str, str], set[str | None]]:
    """By class ("MTLDevice") and selector: the encodings of the C++ methods that send it."""
    text = "\n".join(f.read_text() for f in sorted(folder.rglob("*.hpp")) if f.parent != folder)
    selectors = dict(_SELECTOR.findall(text))
    enums = {}
    for underlying, name in _ENUM.findall(text):
        if underlying in PLAIN:
            enums[f"MTL::{name}"] = PLAIN[underlying]
    found: dict[tuple[str, str], set[str | None]] = {}
    for result, space, cls, arguments, selector in _METHOD.findall(text):
        key = space + cls, selectors.get(selector, selector.replace("_", ":"))
        given = [_type(a) for a in arguments.split(",") if a.strip()]
        found.setdefault(key, set()).add(encoding(result, given, enums))
    return found


def enum_values(folder: Path) -> dict[str, int]:
    """Values that are plain numbers, by Objective-C name."""
    found = {}
    for header in sorted((folder / "Metal").glob("*.hpp")):
        text = header.read_text()
        for name, value in re.findall(r"^\s+([A-Z]\w+) = (\d+),", text, re.M):
            found[f"MTL{name}"] = int(value)
    return found
