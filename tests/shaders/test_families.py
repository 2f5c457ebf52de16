"""The shader files: one flat text each, names that parse, contracts, contraction off."""

import re

import abi
import pytest

from torch_mps_fusion import shaders
from torch_mps_fusion.metal_host import Library, build, source
from torch_mps_fusion.metal_host.lint import lint

TEXTS = {f: shaders.flat_text(abi.SHADERS / f"{f}.metal") for f in shaders.FAMILIES}


def host_names(family: str, **macros: int) -> list[str]:
    """Host names of the instances that the file lists, macros expanded."""
    flags = [f"-D{k}={v}" for k, v in macros.items()]
    program = build.prepare(source.flatten(abi.SHADERS / f"{family}.metal"), flags)
    return [entry.host for entry in program.entries]


def test_families_are_the_files():
    assert {p.stem for p in abi.SHADERS.glob("*.metal")} == set(shaders.FAMILIES)


@pytest.mark.parametrize("family", shaders.FAMILIES)
def test_every_name_parses_and_says_its_family(family):
    names = host_names(family)
    assert len(names) == len(set(names)) >= 3
    for name in names:
        parsed = shaders.parse_name(name)
        assert parsed.op == family and parsed.acc == "f32" and parsed.tile
    assert {shaders.parse_name(n).io for n in names} == {"f32", "f16", "bf16"}


@pytest.mark.parametrize("family", shaders.FAMILIES)
def test_defines_choose_a_kernel_out_of_its_family(family):
    """Little else is compiled: what is left differs in nothing that has a macro."""
    for name in host_names(family)[::5]:
        left = host_names(family, **shaders.defines(name))
        assert name in left and len(left) <= 2


@pytest.mark.parametrize("family", shaders.FAMILIES)
def test_every_instance_compiles(family):
    path = abi.SHADERS / f"{family}.metal"
    constants = [c.name for c in source.function_constants(TEXTS[family])]
    built = Library(path, dict.fromkeys(constants, 1))
    assert sorted(built.kernels) == sorted(host_names(family)) and not built.warnings


def test_parse_name():
    parsed = shaders.parse_name("tmf_rule_f16_f32_dk128dv64r1s4__group")
    assert (parsed.op, parsed.io, parsed.acc, parsed.scope) == ("rule", "f16", "f32", "group")
    assert parsed.tile == {"dk": 128, "dv": 64, "r": 1, "s": 4}
    assert shaders.parse_name("tmf_projection_bf16_f32_nt1u2p__group").tile["p"] == 1
    for bad in ("rule_f16_f32_r1__group", "tmf_rule_f16_f32_r1", "tmf_rule_f64_f32_r1__simd"):
        with pytest.raises(ValueError, match="is not a kernel name"):
            shaders.parse_name(bad)


@pytest.mark.parametrize("family", shaders.FAMILIES)
def test_flat_text_stands_alone(family):
    text = TEXTS[family]
    assert '#include "' not in text and "#pragma once" not in text
    assert text.count("#include <metal_stdlib>") == 1
    off = text.index("#pragma METAL fp contract(off)")
    assert off < re.search(r"\)\s*{", text).start()
    assert text.startswith("//") and "Launch:" in text[:2000] and "Who:" in text[:2000]


def test_flat_text_names_a_missing_include(tmp_path):
    (tmp_path / "a.metal").write_text('#include "nowhere.h"\n')
    with pytest.raises(FileNotFoundError, match="nowhere.h"):
        shaders.flat_text(tmp_path / "a.metal")


def test_function_constants_have_one_index_each():
    found = set()
    for text in TEXTS.values():
        found |= set(re.findall(r"constant bool (\w+) \[\[function_constant\((\d+)\)\]\]", text))
    assert len({name for name, _ in found}) == len({index for _, index in found}) == len(found)


@pytest.mark.parametrize("family", shaders.FAMILIES)
def test_lint_has_nothing_to_say(family):
    assert not [str(finding) for finding in lint(abi.SHADERS / f"{family}.metal")]
