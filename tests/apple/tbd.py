"""Linker stubs (.tbd) of Apple's libraries, from what published macOS binaries import from them.

An under-approximation: every symbol listed is one that a released arm64 binary binds from that
library, or a documented entry point in `DOCUMENTED`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from macho import MachO

CLASS = "_OBJC_CLASS_$_"
METAL = "/System/Library/Frameworks/Metal.framework/Versions/A/Metal"
OBJC = "/usr/lib/libobjc.A.dylib"
CXX = "/usr/lib/libc++.1.dylib"
SYSTEM = "/usr/lib/libSystem.B.dylib"

# Documented, and bound by none of the binaries that are read.
DOCUMENTED = {
    METAL: {CLASS + "MTLFunctionConstantValues"},
    OBJC: {"_objc_alloc", "_objc_alloc_init", "_objc_retain", "_objc_release"},
}


def imported_symbols(binaries: Iterable[MachO]) -> dict[str, set[str]]:
    """Symbols by install name of the library of Apple's that they are bound to."""
    found: dict[str, set[str]] = defaultdict(set)
    for binary in binaries:
        for symbol, library in binary.imports.items():
            if library.startswith("/"):
                found[library].add(symbol)
    for library, symbols in DOCUMENTED.items():
        found[library] |= symbols
    return dict(found)


def file_name(library: str) -> str:
    """`libobjc` for /usr/lib/libobjc.A.dylib, `Metal` for the framework."""
    return re.sub(r"(\.[A-Z0-9])?\.dylib$", "", library.rsplit("/", 1)[-1]).replace(" ", "_")


def write(folder: Path, symbols: dict[str, set[str]]) -> None:
    """One .tbd file a library in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for library, names in symbols.items():
        classes = sorted(n.removeprefix(CLASS) for n in names if n.startswith(CLASS))
        plain = sorted(n for n in names if not n.startswith("_OBJC_"))
        lines = [
            "--- !tapi-tbd",
            "tbd-version: 4",
            "targets: [ arm64-macos ]",
            f"install-name: '{library}'",
            "current-version: 1",
            "exports:",
            "  - targets: [ arm64-macos ]",
        ]
        for key, items in (("symbols", plain), ("objc-classes", classes)):
            if items:
                lines.append(f"    {key}: [ {', '.join(repr(i) for i in items)} ]")
        (folder / f"{file_name(library)}.tbd").write_text("\n".join([*lines, "...", ""]))


def read(path: Path) -> tuple[str, set[str]]:
    """Install name and symbols of a file that `write` made."""
    text = path.read_text()
    names = {
        key: set(re.findall(r"'([^']+)'", line))
        for key, line in re.findall(r"^ *(install-name|symbols|objc-classes): (.*)$", text, re.M)
    }
    (name,) = names["install-name"]
    classes = {CLASS + c for c in names.get("objc-classes", ())}
    return name, names.get("symbols", set()) | classes
