"""The structs that C++ and the shaders share, read from their headers: fields and bytes."""

from __future__ import annotations

import re
import struct
from pathlib import Path

SHADERS = Path(__file__).parents[2] / "shaders"
HEADERS = [SHADERS / "include" / name for name in ("abi.h", "tasks.h")]
_CODES = {"unsigned int": "I", "int": "i", "float": "f"}


def headers() -> str:
    """The text of the headers, one behind the other."""
    return "".join(header.read_text() for header in HEADERS)


def fields(name: str) -> dict[str, str]:
    """Field names of a struct, in order, with their C types; all are 4 bytes wide."""
    text = re.sub(r"//[^\n]*", "", headers())
    match = re.search(rf"struct {name} {{(.*?)}};", text, re.S)
    assert match, f"no header has a struct {name}"
    found = {}
    for kind, names in re.findall(r"(unsigned int|int|float)\s+([^;]+);", match[1]):
        found |= {field.strip(): kind for field in names.split(",")}
    return found


def write(name: str, **values: int | float) -> bytearray:
    """The struct as bytes. Every field but reserved ones must be given."""
    known = fields(name)
    wanted = {f for f in known if not f.startswith("reserved")}
    assert set(values) == wanted, (name, set(values) ^ wanted)
    data = (values.get(field, 0) for field in known)
    return bytearray(struct.pack("<" + "".join(_CODES[k] for k in known.values()), *data))
