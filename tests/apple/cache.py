"""What the Apple checks make once and keep, also where several processes ask at the same time."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path


def folder() -> Path:
    """TMF_APPLE_CACHE, else a folder of the user's cache."""
    asked = os.environ.get("TMF_APPLE_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    path = Path(asked) if asked else base / "torch_mps_fusion" / "apple"
    path.mkdir(parents=True, exist_ok=True)
    return path


def digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One thread of one process at a time, for what is at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def made(out: Path, make: Callable[[Path], None]) -> Path:
    """The file `out`; `make` writes it at the path that it is given, if it is not there."""
    if not out.exists():
        with locked(out):
            if not out.exists():
                part = out.with_name(f"part-{out.name}")
                make(part)
                os.replace(part, out)
    return out
