"""The extension for arm64 macOS: compiles without a warning, links with every symbol found."""

from __future__ import annotations

import re
from pathlib import Path

import clang
import cross
import needs
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


@pytest.mark.parametrize(
    "name", ["ATen/core/dispatch/Dispatcher.h", "ATen/ops/empty.h", "torch/library.h"]
)
def test_what_is_precompiled_is_what_the_source_includes_anyway(
    mac_torch: Path, name: str, tmp_path: Path
) -> None:
    source = tmp_path / "one.cpp"
    source.write_text(f"#include <{name}>\n")
    headers = clang.precompiled_headers(source, source.read_text())
    read = clang.zig("c++", *cross.options(mac_torch), "-E", source).stdout
    assert len(headers) >= 3
    assert [h for h in headers if f'/{h}" 1 3' not in read] == []


@pytest.mark.parametrize(
    ("file", "right", "wrong", "said"),
    [
        (
            "mps_runner.mm",
            "at::mps::getCurrentMPSStream();",
            "at::mps::getMPSStream();",
            "no member named 'getMPSStream'",
        ),
        ("metal_encoder.mm", "offset:view.offset", "ofset:view.offset", "ofset"),
        (
            "metal_encoder.mm",
            "static_cast<id<MTLBuffer>>(view.object)",
            "view.object",
            "cannot initialize a parameter of type 'id<MTLBuffer>'",
        ),
        (
            "pipelines.mm",
            "if (@available(macOS 15.0, *)) {\n    options.mathMode",
            "{\n    options.mathMode",
            "only available on macOS 15.0 or newer",
        ),
        (
            "pipelines.mm",
            "newComputePipelineStateWithFunction:function.get()",
            "newComputePipelineStateWithFunction:device",
            "id<MTLDevice>",
        ),
    ],
)
def test_a_mistake_does_not_compile(
    file: str, right: str, wrong: str, said: str, tmp_path: Path
) -> None:
    text = (cross.ROOT / "csrc" / "mps" / file).read_text()
    assert right in text
    mutant = tmp_path / file
    mutant.write_text(text.replace(right, wrong, 1))
    with pytest.raises(RuntimeError, match=re.escape(said)):
        cross.compiled(mutant, needs.wheel("torch-2.13"))


def test_a_symbol_that_torch_does_not_export_does_not_link(tmp_path: Path) -> None:
    torch = needs.wheel("torch-2.13")
    source = tmp_path / "more.cpp"
    source.write_text("namespace at::mps { void nowhere(); }\nvoid f() { at::mps::nowhere(); }\n")
    more = cross.compiled(source, torch)
    said = cross.linked([*cross.objects(torch), more], torch, tmp_path / "_C.so")
    assert "undefined symbol: __ZN2at3mps7nowhereEv" in said
