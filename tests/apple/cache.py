"""What the Apple checks make once and keep, also where several processes ask at the same time."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import downloads


def folder() -> Path:
    """TMF_APPLE_CACHE, else a folder of the user's cache."""
    asked = os.environ.get("TMF_APPLE_CACHE")
    if not asked:
        return downloads.cache_folder("apple")
    path = Path(asked)
    path.mkdir(parents=True, exist_ok=True)
    return path


def digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]


def made(out: Path, make: Callable[[Path], None]) -> Path:
    """The file `out`; `make` writes it at the path that it is given, if it is not there."""
    if not out.exists():
        with downloads.locked(out):
            if not out.exists():
                part = out.with_name(f"part-{out.name}")
                make(part)
                os.replace(part, out)
    return out
