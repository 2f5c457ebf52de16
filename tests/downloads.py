"""Published packages that a test reads as data: fetched by pip once, kept in the user's cache."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

TIME_LIMIT = 600


def cache_folder(name: str) -> Path:
    """A folder of the project in the user's cache."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    path = base / "torch_mps_fusion" / name
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One thread of one process at a time, for what is at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def by_pip(requirement: str, folder: Path, pattern: str, *options: str) -> Path:
    """The one file of `pattern` that `pip download` puts into `folder`. OSError if it cannot."""
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
        *(*options, "--dest", str(folder), requirement),
    ]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"pip download {requirement}: {error}") from error
    if result.returncode:
        raise OSError(f"pip download {requirement}: {result.stderr.strip()[-500:]}")
    (file,) = folder.glob(pattern)
    return file
