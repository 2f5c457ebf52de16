"""Every lint rule: a bad snippet, found on its line, and a good twin without a finding."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torch_mps_fusion.metal_host.lint import lint, lint_text, parse_level, wishes

HEAD = """#include <metal_stdlib>
#pragma METAL fp contract(off)
using namespace metal;
"""
KERNEL = """kernel void k(device float* x [[buffer(0)]], constant uint& n [[buffer(1)]],
              device atomic_uint* c [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  %s
}
"""
MSL32 = "// metal_host: msl 3.2\n"
MSL41 = "// metal_host: msl 4.1\n"
LOAD = "uint v = atomic_load_explicit(c, memory_order_%s); x[i] = v;"
FENCE = "atomic_thread_fence(mem_flags::mem_device, memory_order_%s, thread_scope_device);"


def inside(body: str) -> str:
    return HEAD + KERNEL % body


def outside(text: str) -> str:
    return HEAD + text + "\n" + KERNEL % "x[i] = float(n);"


# rule, the bad text, the good one: everything else of the file is the same
PAIRS = {
    "double variable": (
        "double",
        inside("double d = 1; x[i] = d;"),
        inside("float d = 1; x[i] = d;"),
    ),
    "double in a name": (
        "double",
        inside("double y;"),
        inside("float double_y = 1, ydouble; x[i] = double_y;"),
    ),
    "double in a comment": (
        "double",
        inside("double y; // float"),
        inside("float y; /* double */ // double"),
    ),
    "double in a string": (
        "double",
        outside("double twice(float a);"),
        outside('static_assert(sizeof(float) == 4, "double \\" new goto // double");'),
    ),
    "double in a used macro": (
        "double",
        outside("#define REAL double\nstatic float f() { REAL z = 1; return z; }"),
        outside("#define REAL double\n#define OTHER(x) (x)"),
    ),
    "double through two macros": (
        "double",
        outside("#define A double\n#define B A\nstatic float f() { B z = 1; return z; }"),
        outside("#define A double\n#define B A\n#undef B"),
    ),
    "double in a live branch": (
        "double",
        outside("#ifndef SOMETHING\nstatic double f();\n#endif"),
        outside("#if 0\nstatic double f();\n#endif"),
    ),
    "double below a version": (
        "double",
        outside("#if __METAL_VERSION__ >= 310\nstatic double f();\n#endif"),
        outside("#if __METAL_VERSION__ >= 320\nstatic double f();\n#endif"),
    ),
    "long double literal": (
        "double",
        inside("x[i] = 1.0L;"),
        inside("x[i] = 1.0f; ulong q = 0x1.8p1 > 1 ? 3L : 1UL;"),
    ),
    "new": (
        "new-delete",
        inside("auto p = new float[3];"),
        inside("float newest = 1; x[i] = newest;"),
    ),
    "delete": (
        "new-delete",
        inside("delete x;"),
        outside("struct S { S(int) = delete; float a; };"),
    ),
    "virtual": (
        "virtual",
        outside("struct S { virtual float f(); };"),
        outside("struct S { float f(); };"),
    ),
    "goto": ("goto", inside("goto end; end: x[i] = 1;"), inside("for (;;) { x[i] = 1; break; }")),
    "try": ("exceptions", inside("try { x[i] = 1; } catch (int e) {}"), inside("{ x[i] = 1; }")),
    "throw": ("exceptions", inside("throw 1;"), inside("float throws = 1; x[i] = throws;")),
    "rtti": (
        "rtti",
        inside("x[i] = typeid(n) == typeid(i);"),
        inside("x[i] = is_same_v<uint, int>;"),
    ),
    "thread_local": (
        "storage-class",
        inside("thread_local float a;"),
        inside("thread float* a = 0;"),
    ),
    "inline assembly": (
        "asm",
        inside('asm("nop");'),
        inside('\n#ifdef MSL_GPU\nasm("nop");\n#else\nx[i] = 1;\n#endif\n'),
    ),
    "lambda": (
        "lambda",
        inside("auto f = [&](float a) { return a; }; x[i] = f(1);"),
        inside(
            "float t[2][3]; t[0][1] = 1; (&x[i])[0] = t[0][1]; uint3 q = {i, i, i}; x[q[0]] = 1;"
        ),
    ),
    "lambda as an argument": (
        "lambda",
        inside("x[i] = g([] { return 1; });"),
        inside("x[i] = g(x[0]);"),
    ),
    "standard header": (
        "header",
        "#include <cmath>\n" + outside(""),
        "#include <metal_math>\n" + outside(""),
    ),
    "namespace std": (
        "header",
        inside("x[i] = std::max(1.0f, x[i]);"),
        inside("x[i] = metal::max(1.0f, x[i]);"),
    ),
    "pointer parameter": (
        "address-space",
        outside("static float f(const float* a) { return *a; }"),
        outside("static float f(thread const float* a) { return *a * *a; }"),
    ),
    "reference parameter": (
        "address-space",
        outside("struct P { uint n; };\nstatic uint f(const P& p) { return p.n; }"),
        outside("struct P { uint n; };\nstatic uint f(constant P& p) { return p.n; }"),
    ),
    "pointer variable": (
        "address-space",
        inside("float y; float* p = &y; *p = 1;"),
        inside("float y; thread float* p = &y;"),
    ),
    "pointer cast": (
        "address-space",
        inside("x[i] = ((float4*)x)[0].x;"),
        inside(
            "x[i] = ((device float4*)x)[0].x + ((const device int4*)x)[1].x; n = (uint)i * n & i;"
        ),
    ),
    "reinterpret_cast": (
        "address-space",
        inside("auto q = reinterpret_cast<uint4*>(x);"),
        inside("auto q = reinterpret_cast<device uint4*>(x); x[i] = q[0].x;"),
    ),
    "auto reference": (
        "address-space",
        inside("auto& r = x[i]; r = 1;"),
        inside("device auto& r = x[i]; r = 1;"),
    ),
    "pointer to pointer": (
        "address-space",
        inside("device float** p = 0;"),
        inside("device float* thread* p = 0; device float *const y = x;"),
    ),
    "pointer of a template type": (
        "address-space",
        outside("template <typename T> static T f(vec<T, 4>* a) { return a->x; }"),
        outside("template <typename T> static T f(device vec<T, 4>* a) { return a->x; }"),
    ),
    "pointer alias": (
        "address-space",
        outside("using P = float*;"),
        outside("using P = device float*;"),
    ),
    "pointer member": (
        "address-space",
        outside("struct S { uint n; float* p; };"),
        outside("struct S { uint n; device float* p; };"),
    ),
    "products are not pointers": (
        "address-space",
        inside("float* y = 0;"),
        inside("uint a = i * n, b = (a * i) & n; x[a * b] = float(a) * b; a = sizeof(float) * n;"),
    ),
    "threadgroup variable in a function": (
        "threadgroup-variable",
        outside("static void f() { threadgroup float t[4]; t[0] = 1; }"),
        outside(
            "static void f(threadgroup float* t, threadgroup uint& u) { threadgroup float* q = t; }"
        ),
    ),
    "threadgroup variable at file scope": (
        "threadgroup-variable",
        outside("threadgroup float t[4];"),
        outside(
            "[[kernel]] void g() { threadgroup float t[4], u; { threadgroup uint v; v = 1; } }"
        ),
    ),
    "threadgroup variable after an operator": (
        "threadgroup-variable",
        outside("struct S { int a; bool operator<(S o) { threadgroup int t; return a < t; } };"),
        outside("struct S { int a; bool operator<(S o) { int t = 1; return a < o.a + t; } };"),
    ),
    "program-scope variable": (
        "program-scope",
        outside("constexpr int N = 4; static const float y[2] = {1, 2};"),
        outside("constant constexpr int N = 4; static constant const float y[2] = {1, 2};"),
    ),
    "static local": (
        "program-scope",
        inside("static uint seen = 0; x[i] = seen;"),
        inside(
            "static constant constexpr uint seen = 0; const uint other = 1; x[i] = seen + other;"
        ),
    ),
    "static member": (
        "program-scope",
        outside("template <int M> struct S { static constexpr int n = M; };"),
        outside("template <int M> struct S { static constant constexpr int n = M; int m; };"),
    ),
    "acquire on an atomic": ("memory-order", inside(LOAD % "acquire"), inside(LOAD % "relaxed")),
    "acquire before 4.1": (
        "memory-order",
        MSL32 + inside(LOAD % "acquire"),
        MSL41 + inside(LOAD % "acquire"),
    ),
    "consume": ("memory-order", MSL41 + inside(LOAD % "consume"), MSL41 + inside(LOAD % "release")),
    "scoped order name": (
        "memory-order",
        inside("x[i] = atomic_load_explicit(c, memory_order::relaxed);"),
        inside("x[i] = atomic_load_explicit(c, metal::memory_order_relaxed);"),
    ),
    "fence order unknown": (
        "memory-order",
        MSL32 + inside(FENCE % "consume"),
        MSL32 + inside(FENCE % "relaxed"),
    ),
    "fence order before 4.1": (
        "memory-order",
        MSL32 + inside(FENCE % "acq_rel"),
        MSL41 + inside(FENCE % "acq_rel"),
    ),
    "fence below 3.2": ("msl-level", inside(FENCE % "seq_cst"), MSL32 + inside(FENCE % "seq_cst")),
    "coherent below 3.2": (
        "msl-level",
        outside("static void f(coherent(device) device float* p) { p[0] = 1; }"),
        MSL32
        + outside(
            "static void f(coherent(device) device float* p, device coherent(device) uint& q) {}"
        ),
    ),
    "bfloat below 3.1": (
        "msl-level",
        "// metal_host: msl 3.0\n" + inside("bfloat b = 1.0bf; x[i] = b;"),
        "// metal_host: msl 3.0\n" + inside("half b = 1.0h; x[i] = b + 0x1bf;"),
    ),
    "tensors below 4.0": (
        "msl-level",
        MSL32 + "#include <metal_tensor>\n" + outside(""),
        "// metal_host: msl 4.0\n#include <metal_tensor>\n" + outside(""),
    ),
    "contraction on": (
        "contraction",
        HEAD.replace("#pragma METAL fp contract(off)\n", "") + KERNEL % "x[i] = 1;",
        inside("x[i] = 1;"),
    ),
    "contraction off too late": (
        "contraction",
        "static float f(float a) { return a; }\n" + outside(""),
        "struct S { float a; };\nconstant constexpr int N[2] = {1, 2};\n" + outside(""),
    ),
    "contraction on again": (
        "contraction",
        outside("static float f(float a) {\n#pragma METAL fp contract(fast)\n  return a; }"),
        outside("static float f(float a) {\n#pragma METAL fp contract(off)\n  return a; }"),
    ),
    "directive inside a comment": (
        "directive",
        "// Sums. metal_host: msl 3.2\n" + outside(""),
        "// Sums.\n\n// metal_host: msl 3.2\n" + outside(""),
    ),
    "directive not understood": (
        "directive",
        "// metal_host: msl 9.9\n" + outside(""),
        "// metal_host is a tool\n" + outside(""),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_bad_is_found_and_good_is_not(name: str) -> None:
    rule, bad, good = PAIRS[name]
    findings = lint_text(bad)
    assert {f.rule for f in findings} == {rule}, [str(f) for f in findings]
    assert lint_text(good) == []


def test_every_text_rule_has_a_pair() -> None:
    source = Path(lint.__code__.co_filename).parent
    text = "".join((source / n).read_text() for n in ("rules.py", "rules_pointers.py", "lint.py"))
    named = set(re.findall(r'(?:yield .*?, |Finding\(file, comment.line, )"([a-z-]+)"', text))
    named |= set(re.findall(r': \("([a-z-]+)", "Metal has no', text))
    assert named and named - {rule for rule, _, _ in PAIRS.values()} <= {"coroutines"}


def test_place_and_wording() -> None:
    finding = lint_text(inside("x[i] = 1;\n\n  double y;"), "dir/a.metal")[0]
    assert (finding.file, finding.line, finding.rule) == ("dir/a.metal", 8, "double")
    assert str(finding) == "dir/a.metal:8: double: Metal has no double"


def test_level_argument_overrides_the_file() -> None:
    text = MSL32 + inside(FENCE % "seq_cst")
    assert [f.rule for f in lint_text(text, level=(3, 1))] == ["msl-level"]
    assert lint_text(text, level=(4, 0)) == []


def test_findings_in_an_include_name_the_include(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "h.h").write_text('#pragma once\n\nstatic double f();\n#include "i.h"\n')
    (tmp_path / "sub" / "i.h").write_text("struct V { virtual void g(); };\n")
    main = tmp_path / "a.metal"
    main.write_text(
        '#include "sub/h.h"\n'
        + outside("").replace("#include <metal_stdlib>\n", '#include "sub/h.h"\n')
    )
    places = [(Path(f.file).name, f.line, f.rule) for f in lint(main)]
    assert places == [("h.h", 3, "double"), ("i.h", 1, "virtual")]


@pytest.mark.parametrize("level", ["3", "3.3", "three", ""])
def test_unknown_level_names_what_is_accepted(level: str) -> None:
    with pytest.raises(ValueError, match=r"msl: got .*accepted: .*3\.2"):
        parse_level(level)


def test_wishes() -> None:
    asked, findings = wishes(
        "/* metal_host: explicit-fma */\n// metal_host: msl 3.2\n// see metal_host: levels\n"
    )
    assert (asked.level, asked.explicit_fma, findings) == ((3, 2), True, [])


@pytest.mark.parametrize(
    "text", ["", "(", "}", "{{[[", '"', "'", "/*", "#define", "#if (", 'R"(', "a < b > * c", "\\"]
)
def test_broken_text_does_not_crash(text: str) -> None:
    assert isinstance(lint_text(text), list)
