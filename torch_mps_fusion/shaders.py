"""The shader families: their files, one flat text each, and the grammar of kernel names.

`newLibraryWithSource` has no include path, so that the build embeds the text that `flat_text`
makes; this module is run by the build and reads nothing but the files of the family.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

# Each is a file shaders/<family>.metal and a library of its own: a family that does not compile
# takes no other one down.
FAMILIES = (
    "rms_norm",
    "projection",
    "conv",
    "qk_gates",
    "rule",
    "gated_norm",
    "core",
    "persistent",
    "commit",
)

_INCLUDE = re.compile(r'^[ \t]*#include[ \t]+"([^"]+)"[ \t]*$', re.M)
_ONCE = re.compile(r"^[ \t]*#pragma once[ \t]*\n", re.M)
_NAME = re.compile(
    r"tmf_(?P<op>[a-z][a-z_]*?)_(?P<io>f32|f16|bf16)_(?P<acc>f32)_(?P<tile>[a-z0-9]+)"
    r"__(?P<scope>thread|simd|group|grid)"
)


@dataclass(frozen=True)
class KernelName:
    """tmf_<op>_<io>_<acc>_<tile>__<scope>.

    `io` is the dtype of the tensors, `acc` of sums, `scope` what one output belongs to. `tile`
    holds letters and numbers in turn: {"dk": 128, "dv": 128, "r": 2} for "dk128dv128r2"; a letter
    without a number, as the last of "nt1u2p", is 1.
    """

    op: str
    io: str
    acc: str
    tile: dict[str, int]
    scope: str


def parse_name(name: str) -> KernelName:
    """The fields of a kernel's host name; ValueError if it is not one."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(
            f"name: {name!r} is not a kernel name; accepted: tmf_<op>_<io>_<acc>_<tile>__<scope>"
        )
    tile = {k: int(v or 1) for k, v in re.findall(r"([a-z]+)(\d*)", match["tile"])}
    return KernelName(match["op"], match["io"], match["acc"], tile, match["scope"])


def flat_text(path: str | Path) -> str:
    """The text of a .metal file with its local includes in place, each file once.

    Raises FileNotFoundError, naming the include, if one is nowhere.
    """
    seen: set[Path] = set()

    def read(file: Path) -> str:
        if file.resolve() in seen:
            return ""
        seen.add(file.resolve())
        text = _ONCE.sub("", file.read_text(encoding="utf-8"))
        return _INCLUDE.sub(lambda m: read(file.parent / m[1]).rstrip("\n"), text)

    return read(Path(path))


# The values of TMF_IO in shaders/include/kernel.h.
_IO = {"f16": 16, "bf16": 17, "f32": 32}


def defines(name: str) -> dict[str, int]:
    """Preprocessor macros with which the family's text compiles little else than this kernel."""
    parsed = parse_name(name)
    chosen = {f"TMF_{k.upper()}": v for k, v in parsed.tile.items() if k in ("dk", "dv", "nt", "u")}
    return {"TMF_IO": _IO[parsed.io]} | chosen


def threads(name: str) -> int:
    """Threads of a threadgroup of the kernel."""
    parsed = parse_name(name)
    if parsed.op == "rule":
        return 32 * parsed.tile["s"]
    if parsed.op == "core":
        return 8 * parsed.tile["dv"] // parsed.tile["r"]
    return 256


def resident(name: str, norm: bool = False) -> int | None:
    """Threadgroups of the kernel that a core is to hold at once, where a compiler shares out
    registers by it (PTX); None where it knows better. norm: a projection normalises its rows."""
    parsed = parse_name(name)
    if parsed.op == "projection":
        loads = parsed.tile["nt"] * parsed.tile["u"] * (2 if "p" in parsed.tile else 1)
        return (3 if norm or "p" in parsed.tile else 4) if loads == 4 else 2
    if parsed.op in ("persistent", "conv"):
        return 2
    if parsed.op in ("core", "rule", "rms_norm"):
        return max(1, 512 // threads(name))
    return None
