"""Published macOS wheels, downloaded by pip and unpacked as data. Nothing of them is imported."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import cache
import downloads


@dataclass(frozen=True)
class Wheel:
    """A requirement, the platform tag it is published for, and what is unpacked of it."""

    name: str
    requirement: str
    platform: str
    parts: tuple[str, ...]


TORCH_PARTS = ("torch/include/", "torch/lib/lib", "torch/version.py")
WHEELS = {
    w.name: w
    for w in (
        Wheel("torch-2.13", "torch==2.13.0", "macosx_14_0_arm64", TORCH_PARTS),
        Wheel("torch-2.14", "torch>=2.14,<2.15", "macosx_14_0_arm64", TORCH_PARTS),
        Wheel(
            "pyobjc",
            "pyobjc-framework-Metal==12.2.2",
            "macosx_10_9_universal2",
            ("Metal/",),
        ),
        Wheel(
            "mlx-metal",
            "mlx-metal==0.32.4",
            "macosx_14_0_arm64",
            ("mlx/include/metal_cpp/", "mlx/lib/libmlx.dylib"),
        ),
    )
}
TORCHES = ("torch-2.13", "torch-2.14")


def unpacked(name: str) -> Path:
    """The folder of a wheel of WHEELS, fetched on first use. OSError if pip cannot get it."""
    folder = cache.folder() / name
    with downloads.locked(folder):
        if not (folder / ".ready").exists():
            _unpack(WHEELS[name], folder)
    return folder


def _unpack(wheel: Wheel, folder: Path) -> None:
    file = downloads.by_pip(
        wheel.requirement,
        cache.folder() / "wheels" / wheel.name,
        "*.whl",
        *("--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp"),
        *("--platform", wheel.platform),
    )
    with zipfile.ZipFile(file) as archive:
        chosen = [n for n in archive.namelist() if n.startswith(wheel.parts)]
        archive.extractall(folder, chosen)
    (folder / ".ready").touch()
