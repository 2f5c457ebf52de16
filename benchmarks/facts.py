"""What ran, as receipts record it: machine, versions, sources."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torch_mps_fusion.shaders import FAMILIES

ROOT = Path(__file__).parent.parent
COMMIT = "TORCH_MPS_FUSION_COMMIT"


def sha256(data: bytes | str) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def sha256_of(value: Any) -> str:
    """Of anything that is JSON."""
    return sha256(json.dumps(value, sort_keys=True))


def tensor_sha256(tensors: Iterable[Tensor]) -> str:
    """Of the logical contents, whatever the strides or the device."""
    found = hashlib.sha256()
    for t in tensors:
        whole = t.detach().cpu().contiguous()
        found.update(f"{whole.dtype} {tuple(whole.shape)}".encode())
        found.update(whole.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def command(*words: str) -> str | None:
    """What a command prints, or None where there is none."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, cwd=ROOT)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


@cache
def source() -> dict[str, Any]:
    """Commit, whether files differ from it, hashes of the shader files and of the texts made of
    them. A copy of the tree without its repository takes the commit from COMMIT, if that is set;
    whether it is clean is then unknown."""
    commit, status = command("git", "rev-parse", "HEAD"), command("git", "status", "--porcelain")
    files = sorted([*(ROOT / "shaders").rglob("*.metal"), *(ROOT / "benchmarks").rglob("*.metal")])
    return {
        "commit": commit or os.environ.get(COMMIT),
        "dirty": None if commit is None else status is not None,
        "shaders": {str(f.relative_to(ROOT)): sha256(f.read_bytes()) for f in files},
        "texts": {f: sha256(torch.ops.mps_fusion._shader_text(f)) for f in FAMILIES},
    }


def host() -> dict[str, Any]:
    """The machine as the CPU sees it."""
    return {
        "cpu": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "isa": torch.ops.mps_fusion._cpu_isa(),
        "os": f"{platform.system()} {platform.machine()}",
        "os_build": os_build(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def device(kind: str) -> dict[str, Any]:
    """The device that a run was on: null where a figure cannot be read."""
    found: dict[str, Any] = {
        **host(),
        "kind": kind,
        "name": processor(),
        "gpu_cores": None,
        "gpu_family": None,
        "driver": None,
        "clocks": None,
        "temperature_c": None,
        "thermal": None,
        "power": None,
    }
    if kind == "cuda":
        found |= _cuda()
    if kind == "mps":
        found |= _apple()
    return found


def _cuda() -> dict[str, Any]:
    p = torch.cuda.get_device_properties(0)
    fields = "driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw"
    read = command("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", "-i", "0")
    said = (read or "").split(", ")
    driver, sm, memory, heat, power = said if len(said) == 5 else [None] * 5
    return {
        "name": p.name,
        "gpu_cores": p.multi_processor_count,
        "gpu_family": f"compute capability {p.major}.{p.minor}",
        "driver": driver,
        "clocks": {"sm": sm, "memory": memory},
        "temperature_c": heat,
        "power": power,
    }


def _apple() -> dict[str, Any]:
    cores = None
    for line in (command("ioreg", "-rc", "AGXAccelerator", "-d1") or "").splitlines():
        if '"gpu-core-count"' in line:
            cores = int(line.split("=")[1])
    return {
        "name": command("sysctl", "-n", "machdep.cpu.brand_string"),
        "gpu_cores": cores,
        "driver": os_build(),  # the GPU driver comes with the system
        "thermal": command("pmset", "-g", "therm"),
        "power": command("pmset", "-g", "ps"),
    }


@cache
def os_build() -> str | None:
    """The build of macOS (`sw_vers`), the kernel's release elsewhere."""
    return command("sw_vers", "-buildVersion") or platform.release()


@cache
def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    apple = command("sysctl", "-n", "machdep.cpu.brand_string")
    return names[0] if names else apple or platform.processor() or "unknown"


def cache_bytes(kind: str) -> int | None:
    """The last-level cache of a device; None where it cannot be read (no Apple GPU says)."""
    if kind == "cuda":
        return torch.cuda.get_device_properties(0).L2_cache_size
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    found = [int(s.read_text().strip().rstrip("K")) * 1024 for s in sizes if kind == "cpu"]
    return max(found, default=None)
