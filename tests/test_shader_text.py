"""The shader texts that the build embeds: what Metal compiles on a Mac."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

import torch_mps_fusion  # noqa: F401  (its import registers the ops)
from torch_mps_fusion import shaders

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import embed_shaders as embed  # noqa: E402


@pytest.mark.parametrize("family", shaders.FAMILIES)
def test_the_extension_carries_the_text_of_the_sources(family: str) -> None:
    text = torch.ops.mps_fusion._shader_text(family)
    assert text == shaders.flat_text(ROOT / "shaders" / f"{family}.metal")


@pytest.mark.parametrize("family", shaders.FAMILIES)
def test_L3_the_base_level_includes_only_what_every_macos_has(family: str) -> None:
    text = torch.ops.mps_fusion._shader_text(family)
    included = set(re.findall(r"#\s*include\s*[<\"]([^>\"]+)[>\"]", text))
    assert included <= {"metal_stdlib", "metal_simdgroup_matrix", "metal_atomic"}
    level = 302 if family == "persistent" else 301
    assert embed.LANGUAGE.get(family, embed.BASE_LANGUAGE) == level


def test_function_constants_are_read() -> None:
    text = (
        "constant bool a [[function_constant(7)]];\nconstant uint b [[ function_constant( 3 ) ]];\n"
    )
    assert embed.function_constants(text) == [(3, False), (7, True)]
    with pytest.raises(ValueError, match="3.* is half; accepted: bool, uint"):
        embed.function_constants("constant half b [[function_constant(3)]];")
    with pytest.raises(ValueError, match="7.* twice"):
        embed.function_constants(text + text)


def test_a_text_with_the_delimiter_is_refused() -> None:
    with pytest.raises(ValueError, match="delimiter"):
        embed.literal(')TMF_MSL"')


def test_an_unchanged_source_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "made" / "text.cpp"
    embed.write(path, {"one": "kernel void f() {}"})
    before = path.stat().st_mtime_ns
    embed.write(path, {"one": "kernel void f() {}"})
    assert path.stat().st_mtime_ns == before
    assert '"one"' in path.read_text() and "kernel void f() {}" in path.read_text()
