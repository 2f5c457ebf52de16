"""Where the parts of a CUDA toolkit are: libdevice (mathematical functions), ptxas (assembler).

Both are optional.  Both come with a CUDA toolkit and with the triton wheel.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from .errors import CompileError

_LIBDEVICE = ("nvvm/libdevice/libdevice.10.bc", "lib/libdevice.10.bc")
_PTXAS = ("bin/ptxas",)


@functools.cache
def _roots() -> tuple[Path, ...]:
    """Folders that may hold a toolkit, best first."""
    found = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    nvcc = shutil.which("nvcc")
    if nvcc:  # a wrapper script, at times: nvcc itself knows where its toolkit lies
        command = [nvcc, "--dryrun", "-x", "cu", os.devnull]
        said = subprocess.run(command, capture_output=True, text=True, timeout=60).stderr
        found += re.findall(r"^#\$ TOP=(\S+)", said, re.M)
    spec = importlib.util.find_spec("triton")
    if spec and spec.origin:
        found.append(str(Path(spec.origin).parent / "backends" / "nvidia"))
    return tuple(Path(root) for root in found)


def _first(relative: tuple[str, ...]) -> Path | None:
    candidates = (root / part for root in _roots() for part in relative)
    return next((path.resolve() for path in candidates if path.is_file()), None)


def libdevice() -> Path | None:
    """The bitcode of CUDA's mathematical functions, or None."""
    return _first(_LIBDEVICE)


def ptxas() -> Path | None:
    """The PTX assembler, or None."""
    return _first(_PTXAS) or (Path(p) if (p := shutil.which("ptxas")) else None)


def require_ptxas() -> Path:
    """The PTX assembler.  CompileError says what to install."""
    found = ptxas()
    if found is None:
        raise CompileError(
            "no ptxas: install a CUDA toolkit (CUDA_HOME or nvcc on PATH) or `pip install triton`"
        )
    return found
