"""The lint rules that look at what the compiler makes of a shader: bad snippets and good twins."""

from __future__ import annotations

from pathlib import Path

import pytest
from samples import SHADERS

from torch_mps_fusion.metal_host import CompileError
from torch_mps_fusion.metal_host.lint_compiled import lint_all, lint_compiled

HEAD = """// metal_host: explicit-fma
#include <metal_stdlib>
#pragma METAL fp contract(off)
using namespace metal;
"""
KERNEL = """kernel void k(device float* x [[buffer(0)]], device half* h [[buffer(1)]],
              device float4* v [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  %s
}
"""


def of(tmp_path: Path, body: str, outside: str = "", head: str = HEAD) -> list[tuple[str, int]]:
    path = tmp_path / "k.metal"
    path.write_text(head + outside + KERNEL % body)
    findings = lint_compiled(path)
    assert {f.file for f in findings} <= {str(path)}
    return [(f.rule, f.line) for f in findings]


# line 5 is the first after HEAD
RECURSIVE = {
    "itself": (
        "static float f(uint n) { return n ? f(n - 1) + 1.0f : 0.0f; }\n",
        "static float g(uint n) { return n; }\n"
        "static float f(uint n) { return n ? g(n - 1) : 0; }\n",
        [5],
    ),
    "each other": (
        "static float g(uint n);\nstatic float f(uint n) { return n ? g(n - 1) : 0; }\n"
        "static float g(uint n) { return f(n); }\n",
        "static float g(uint n);\nstatic float f(uint n) { return n ? g(n - 1) : 0; }\n"
        "static float g(uint n) { return n; }\n",
        [6, 7],
    ),
    "an overload is another function": (
        "static float f(float4 a);\nstatic float f(uint n) { return f(float4(n)); }\n"
        "static float f(float4 a) { return a.x > 0 ? f(uint(a.x)) : 0.0f; }\n",
        "static float f(float4 a) { return a.x; }\n"
        "static float f(uint n) { return f(float4(n)); }\n",
        [6, 7],
    ),
    "a template's next instance is another function": (
        "template <int N> static float t(uint n) { return n ? t<N>(n - 1) : 0.0f; }\n"
        "static float f(uint n) { return t<3>(n); }\n",
        "template <int N> static float t(uint n) { if constexpr (N > 0) return t<N - 1>(n); "
        "return n; }\nstatic float f(uint n) { return t<3>(n); }\n",
        [5],
    ),
}


@pytest.mark.parametrize("name", RECURSIVE)
def test_recursion(tmp_path: Path, name: str) -> None:
    bad, good, lines = RECURSIVE[name]
    assert of(tmp_path, "x[i] = f(i);", bad) == [("recursion", line) for line in lines]
    assert of(tmp_path, "x[i] = f(i);", good) == []


CONTRACTIBLE = {
    "float": ("x[i] = x[i + 1] * x[i + 2] + x[i];", "x[i] = fma(x[i + 1], x[i + 2], x[i]);"),
    "difference": ("x[i] = x[i] - x[i + 1] * x[i + 2];", "x[i] = fma(-x[i + 1], x[i + 2], x[i]);"),
    "compound": ("x[i] += x[i + 1] * x[i + 2];", "float p = x[i + 1] * x[i + 2]; x[i] += p;"),
    "half": ("h[i] = h[i + 1] * h[i + 2] + h[i];", "h[i] = fma(h[i + 1], h[i + 2], h[i]);"),
    "vector": ("v[i] = v[i + 1] * v[i + 2] + v[i];", "v[i] = fma(v[i + 1], v[i + 2], v[i]);"),
    "indices are no floats": (
        "x[i * 3 + 1] = x[i * 2 + 1] * 2 + 1;",
        "x[i * 3 + 1] = x[i * 2 + 1] * 2; int4 q = int4(i) * 3 + 1; x[i] = q.x;",
    ),
    "the library's own": ("x[i] = x[i] * 2 + dot(v[i], v[i]);", "x[i] = mix(x[i], x[1], x[2]);"),
}


@pytest.mark.parametrize("name", CONTRACTIBLE)
def test_implicit_multiply_adds(tmp_path: Path, name: str) -> None:
    bad, good = CONTRACTIBLE[name]
    assert of(tmp_path, bad) == [("implicit-fma", 7)]
    assert of(tmp_path, good) == []


def test_multiply_adds_only_on_request(tmp_path: Path) -> None:
    plain = HEAD.replace("explicit-fma", "msl 3.1")
    assert of(tmp_path, CONTRACTIBLE["float"][0], head=plain) == []


def test_threadgroup_memory(tmp_path: Path) -> None:
    body = "threadgroup float a[%d]; { threadgroup float b[64]; b[i] = 1; } a[i] = 2;"
    assert of(tmp_path, body % 8129) == [("threadgroup-memory", 5)]
    assert of(tmp_path, body % 8128) == []


def test_both_sides_of_a_function_constant(tmp_path: Path) -> None:
    constant = "constant bool on [[function_constant(0)]];\n"
    body = "if (on) {\n x[i] += x[1] * x[2];\n } else {\n x[i] -= x[3] * x[4];\n }"
    assert of(tmp_path, body, constant) == [("implicit-fma", 9), ("implicit-fma", 11)]


def test_findings_in_an_include(tmp_path: Path) -> None:
    (tmp_path / "f.h").write_text(
        "// metal_host: explicit-fma\nstatic float f(float a) { return a * a + 1.0f; }\n"
    )
    path = tmp_path / "k.metal"
    path.write_text(
        HEAD.replace("explicit-fma", "msl 3.1") + '#include "f.h"\n' + KERNEL % "x[i] = f(x[i]);"
    )
    (only,) = lint_compiled(path)
    assert (only.file, only.line, only.rule) == (str(tmp_path / "f.h"), 2, "implicit-fma")


def test_text_that_does_not_compile(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"k\.metal:7.*nonsense"):
        of(tmp_path, "x[i] = nonsense;")


@pytest.mark.parametrize("path", sorted(SHADERS.glob("*.metal")), ids=lambda p: p.name)
def test_sample_shaders_are_clean(path: Path) -> None:
    assert lint_all(path) == []
