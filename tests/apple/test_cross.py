"""The extension for arm64 macOS: compiles without a warning, links with every symbol found."""

from __future__ import annotations

from pathlib import Path

import cross
import pytest
import tbd
from macho import MachO


@pytest.fixture(scope="module")
def extension(
    mac_torch: Path, pyobjc: Path, mlx_metal: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("cross") / "_C.so"
    assert cross.linked(cross.objects(mac_torch), mac_torch, out) == ""
    return out


def test_every_bound_symbol_is_exported_by_what_it_is_bound_to(
    extension: Path, mac_torch: Path
) -> None:
    count, bad = cross.unexported(extension, mac_torch)
    assert count > 100
    assert bad == []


def test_the_stream_is_bound_and_the_module_exported(extension: Path) -> None:
    image = MachO(extension)
    assert "_PyInit__C" in image.exports
    torch_cpu = {s for s, lib in image.imports.items() if lib.endswith("libtorch_cpu.dylib")}
    for part in ("getCurrentMPSStream", "MPSStream14commandEncoder", "dispatch_sync_with_rethrow"):
        assert any(part in s for s in torch_cpu), part
    assert tbd.CLASS + "MTLFunctionConstantValues" in image.imports
    assert "_OBJC_CLASS_$_MPSGraph" not in image.imports
