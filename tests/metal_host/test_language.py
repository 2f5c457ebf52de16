"""What the compiler accepts and refuses, against what Metal does."""

import numpy as np
import pytest

from torch_mps_fusion.metal_host import CompileError, Library

HEAD = """#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;
struct P { uint n; float4 v; };
%s
kernel void k(device float* x [[buffer(0)]], constant P& p [[buffer(1)]], device P* q [[buffer(2)]],
              device atomic_uint* c [[buffer(3)]], threadgroup float* tm [[threadgroup(0)]],
              uint tid [[thread_position_in_threadgroup]]) {
  threadgroup float t[4];
  %s
}
"""
ACCEPTED = {
    "address spaces": ("", "t[tid] = x[tid] + tm[0]; q[0].v = p.v; x[0] = q[1].n;"),
    "unsuffixed literal is float": (
        "",
        "static_assert(is_same_v<decltype(x[0] * 2.0), float>); x[0] *= 2.0;",
    ),
    "unsuffixed literal in auto": (
        "",
        "auto z = 0.5; static_assert(is_same_v<decltype(z), float>); x[0] = z;",
    ),
    "device auto reference": ("", "device auto& r = x[2]; r = 1; auto y = x + 1; y[0] = 2;"),
    "vec constructor": (
        "template <class T> static vec<T, 4> m(T a) { return vec<T, 4>(a, a, a, a); }",
        "x[0] = m(1.0f).x;",
    ),
    "constructor through a typedef": (
        "template <class T> static float m(T a) { typedef vec<T, 2> T2; return T2(a, a).y; }",
        "x[0] = m(1.0f);",
    ),
    "constructor through a template parameter": (
        "template <class V> static V m(float4 a) { return V(a); }",
        "x[0] = m<half4>(float4(1.0f)).x + m<bfloat4>(float4(2)).y;",
    ),
    "swizzles": (
        "",
        "float4 a = float4(1, 2, 3, 4); a.xz = a.wy; a.rgb = float3(0); q[0].v.xy = a.zw;"
        "x[0] = a.x;",
    ),
    "mixed constructor": ("", "float4 a = float4(float2(1, 2), 3, x[0]); x[0] = a.w;"),
    "half literal": ("", "half h = 1.0h; h += 0.5h; bfloat b = 1.0bf; x[0] = h + b;"),
    "float4x4": ("", "float4x4 m = float4x4(2.0f); x[0] = (m * float4(1, 2, 3, 4)).y + m[0][0];"),
    "packed types": (
        "struct Q { packed_float3 a; packed_half4 b; packed_float2 c; float d; };"
        'static_assert(sizeof(Q) == 32, ""); static_assert(sizeof(packed_float3) == 12, "");',
        "packed_float3 z = packed_float3(1, 2, 3); float3 w = z; x[0] = w.x + z.y;"
        "device packed_float4* r = (device packed_float4*)(x + 1); x[0] = r[0].w;"
        "r[1] = float4(1);",
    ),
    "array": ("", "array<float, 4> z; z[0] = 1; x[0] = z[0];"),
    "as_type": ("", "x[0] = as_type<float>(3u); x[1] = as_type<half2>(3u).x;"),
    "threadgroup struct": ("struct Q { float a; int b; };", "threadgroup Q zz[8]; zz[tid].a = 1;"),
    "two threadgroup variables": ("", "threadgroup float a[2][3], b; a[1][2] = b = 1;"),
    "threadgroup atomics": (
        "",
        "threadgroup atomic_int a[4]; atomic_fetch_add_explicit(&a[tid], 1, memory_order_relaxed);",
    ),
    "reinterpret_cast": (
        "",
        "device uint4* u = reinterpret_cast<device uint4*>(x);"
        "const device half2* h = (const device half2*)u; x[0] = h[0].x;",
    ),
    "conversions": (
        "",
        "bfloat4 b = bfloat4(float4(1.0f)); float4 f = float4(b); int4 i = int4(char4(1, 2, 3, 4));"
        "x[0] = f.x + i.y;",
    ),
    "static_cast of vectors": (
        "",
        "x[0] = static_cast<float4>(half4(1)).x + static_cast<int>(x[1]);",
    ),
    "packed arithmetic": (
        "",
        "packed_float3 a = packed_float3(1, 2, 3); float3 b = a * 2.0f + a;"
        "x[0] = float4(a, 1).z + b.x;",
    ),
    "coherent pointer": (
        "template <class P> static float get(P p, uint i) { return p[i]; }",
        "coherent(device) device float* y = x; y[1] = get(y, 2) + get(x, 3);"
        "device coherent(device) float4* z = (device coherent(device) float4*)x; z[1] = z[2];",
    ),
    "volatile atomics": (
        "",
        "volatile device atomic_uint* v = c;atomic_store_explicit(v, 1u, memory_order_relaxed);",
    ),
    "constant table": ("constant float table[3] = {1, 2, 3};", "x[0] = table[tid];"),
    "constexpr constant": (
        "constant constexpr int N = 4;",
        "float a[N] = {1, 2, 3, 4}; x[0] = a[tid];",
    ),
    "thread reference": ("static void f(thread float& a) { a = 1; }", "float a; f(a); x[0] = a;"),
    "macros": (
        "#define TWICE(a) ((a) + (a))\n#if __METAL_VERSION__ >= 310 && defined(__HAVE_BFLOAT__)\n"
        "static float f() { return TWICE(1); }\n#endif",
        "x[0] = f();",
    ),
    "select, any, all": (
        "",
        "float4 a = float4(x[0]); x[0] = any(a > 1) ? 1 : select(a, -a, a < 0).x;"
        "x[1] = all(isfinite(a));",
    ),
    "comment and string": (
        "/* kernel void no( */ // kernel void no(\n",
        "x[0] = 1; // [[buffer(9)]]",
    ),
    "loop pragma": ("", '_Pragma("clang loop unroll(full)") for (int i = 0; i < 4; ++i) x[i] = i;'),
    "contraction pragma": ("#pragma METAL fp contract(off)\n", "x[0] = x[1] * x[2] + x[3];"),
}
REFUSED = {
    "device pointer for a thread parameter": (
        "static float h(thread float* a) { return *a; }",
        "x[0] = h(x);",
    ),
    "device pointer for one without address space": (
        "static float h(float* a) { return *a; }",
        "x[0] = h(x);",
    ),
    "threadgroup for a device parameter": (
        "static float h(device float* a) { return *a; }",
        "x[0] = h(t);",
    ),
    "local pointer without address space": ("", "float* y = x; *y = 1;"),
    "write to constant": ("", "p.n = 1;"),
    "simdgroup_load of another type": (
        "",
        "simdgroup_float8x8 m; simdgroup_load(m, (device half*)x, 8);",
    ),
    "acquire order": ("", "atomic_load_explicit(c, memory_order_acquire);"),
    "double": ("", "double z = 1; x[0] = z;"),
    "new": ("", "auto* z = new float[3];"),
    "goto": ("", "again: x[0] += 1; if (x[0] < 3) goto again;"),
    "virtual": ("struct V { virtual void f(); };", ""),
    "throw": ("", "throw 1;"),
    "C++ header": ("#include <cmath>", ""),
    "vector constructor of the wrong width": ("", "x[0] = float4(1, 2, 3).x;"),
    "method on a device object": (
        "struct M { float a; float g() const { return a; } };",
        "device float* wrong = &((thread M*)x)->a; x[0] = ((device M*)x)[0].g() + *wrong;",
    ),
    "coherent dropped": (
        "",
        "coherent(device) device float* y = x; device float* z = y; z[0] = 1;",
    ),
}


def compile_case(case, **more):
    return Library("case.metal", text=HEAD % case, **more)


@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.parametrize("checked", (False, True), ids=("plain", "checked"))
def test_accepted(name, checked):
    library = compile_case(ACCEPTED[name], checked=checked)
    assert library.warnings == ""


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    with pytest.raises(CompileError) as error:
        compile_case(REFUSED[name])
    assert "case.metal:" in str(error.value)


FUNCTIONS = """#include <metal_stdlib>
using namespace metal;
kernel void floats(device const float* a [[buffer(0)]], device const float* b [[buffer(1)]],
                   device float* y [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  float u = a[i], v = b[i];
  float r[] = {exp(u), exp2(u), exp10(u), log(v), log2(v), log10(v), sin(u), cos(u),
               tan(u), asin(u / 9), acos(u / 9), atan(u), sinh(u), cosh(u), tanh(u), asinh(u),
               acosh(v + 1), atanh(u / 9), sqrt(v), rsqrt(v), fabs(u), floor(u), ceil(u), rint(u),
               round(u), trunc(u), fract(u), sign(u), saturate(u), pow(v, u), powr(v, u), fmod(u,
               v), atan2(u, v), copysign(v, u), fmin(u, v), fmax(u, v), fma(u, v, u), fdim(u, v),
               mix(u, v, 0.25), clamp(u, -1.0, 1.0), step(u, v), smoothstep(0.0, 2.0, v),
               precise::exp(u), fast::exp(u), min(u, v), max(u, v), median3(u, v, 1.0f), ldexp(u,
               3), min3(u, v, 0.5f), abs(u)};
  for (uint k = 0; k < 50; ++k) y[i * 50 + k] = r[k];
}
kernel void integers(device const uint* a [[buffer(0)]], device const uint* b [[buffer(1)]],
                     device uint* y [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  uint u = a[i], v = b[i];
  int s = int(u), t = int(v);
  uint r[] = {popcount(u), clz(u), ctz(u), reverse_bits(u), rotate(u, v & 31u),
              extract_bits(u, 3, 7), insert_bits(u, v, 5, 9), addsat(u, v), subsat(u, v), mulhi(u,
              v), hadd(u, v), rhadd(u, v), absdiff(u, v), uint(addsat(s, t)), uint(mulhi(s, t)),
              uint(extract_bits(s, 3, 7)), absdiff(s, t), abs(s) == abs(-s), mad24(u & 0xfffu, v &
              0xfffu, 3u), min(u, v), uint(max(s, t)), uint(popcount(uchar(u))),
              uint(clz(ushort(v))), popcount(uint2(u, v)).y};
  for (uint k = 0; k < 24; ++k) y[i * 24 + k] = r[k];
}
kernel void vectors(device const float4* a [[buffer(0)]], device float* y [[buffer(1)]],
                    uint i [[thread_position_in_grid]]) {
  float4 u = a[i];
  float3 w = u.xyz;
  float r[] = {dot(u, u.wzyx), length(w), distance(w, w.zxy), normalize(w).y, cross(w, w.yzx).z,
               length_squared(u), max(u, 0.5).w, exp(u).z, fma(u, u, u).x, mix(u, u.yxwz, 0.5).w};
  for (uint k = 0; k < 10; ++k) y[i * 10 + k] = r[k];
}
kernel void sixteen(device const half* a [[buffer(0)]], device const bfloat* b [[buffer(1)]],
                    device half* y [[buffer(2)]], device bfloat* z [[buffer(3)]],
                    uint i [[thread_position_in_grid]]) {
  half h = a[i];
  bfloat g = b[i];
  y[i] = h * h + h - 0.5h;
  z[i] = g * g + g;
}
"""


@pytest.fixture(scope="module")
def functions():
    return Library("functions.metal", text=FUNCTIONS)


def test_float_functions(functions):
    rng = np.random.default_rng(0)
    u, v = rng.uniform(-5, 5, 64), rng.uniform(0.1, 6, 64)
    a, b, y = u.astype("f"), v.astype("f"), np.zeros((64, 50), "f")
    functions.kernel("floats")(2, 32, [a, b, y])
    u, v = a.astype("f8"), b.astype("f8")
    t = np.clip(v / 2, 0, 1)
    rows = [np.exp(u), 2**u, 10**u, np.log(v), np.log2(v), np.log10(v), np.sin(u),
            np.cos(u), np.tan(u), np.arcsin(u / 9), np.arccos(u / 9), np.arctan(u), np.sinh(u),
            np.cosh(u), np.tanh(u), np.arcsinh(u), np.arccosh(v + 1), np.arctanh(u / 9),
            np.sqrt(v), v**-0.5, abs(u), np.floor(u), np.ceil(u), np.rint(u), np.trunc(u +
            np.copysign(0.5, u)), np.trunc(u), u - np.floor(u), np.sign(u), np.clip(u, 0, 1),
            v**u, v**u, np.fmod(u, v), np.arctan2(u, v), np.copysign(v, u), np.fmin(u, v),
            np.fmax(u, v), u * v + u, np.maximum(u - v, 0), u + (v - u) * 0.25, np.clip(u, -1, 1),
            (v >= u) * 1.0, t * t * (3 - 2 * t), np.exp(u), np.exp(u), np.fmin(u, v), np.fmax(u,
            v), np.median([u, v, np.ones(64)], axis=0), u * 8, np.minimum(np.minimum(u, v), 0.5),
            abs(u)]  # fmt: skip
    np.testing.assert_allclose(y, np.stack(rows, 1), rtol=3e-6, atol=1e-6)


def signed(x):
    return x - (x >> 31 << 32)


def test_integer_functions(functions):
    rng = np.random.default_rng(1)
    a = rng.integers(0, 2**32, 64, np.uint32)
    b = rng.integers(0, 2**32, 64, np.uint32)
    a[0] = 0
    y = np.zeros((64, 24), np.uint32)
    functions.kernel("integers")(2, 32, [a, b, y])
    for got, u, v in zip(y.tolist(), a.tolist(), b.tolist(), strict=True):
        s, t, r = signed(u), signed(v), v & 31
        field = (u >> 3) & 127
        mask = ((1 << 9) - 1) << 5
        want = [bin(u).count("1"), 32 - u.bit_length(), (u & -u).bit_length() - 1 if u
                else 32, int(f"{u:032b}"[::-1], 2), (u << r | u >> (32 - r)) & 0xFFFFFFFF if r
                else u, field, (u & ~mask) | (v << 5 & mask), min(u + v, 2**32 - 1), max(u - v,
                0), u * v >> 32, (u + v) >> 1, (u + v + 1) >> 1, abs(u - v), min(max(s + t,
                -(2**31)), 2**31 - 1), s * t >> 32, field - (field >> 6 << 7), abs(s - t), 1, (u &
                0xFFF) * (v & 0xFFF) + 3, min(u, v), max(s, t), bin(u & 255).count("1"), 16 - (v &
                0xFFFF).bit_length(), bin(v).count("1")]  # fmt: skip
        assert got == [w & 0xFFFFFFFF for w in want]


def test_vector_functions(functions):
    a = np.random.default_rng(2).standard_normal((32, 4)).astype("f")
    y = np.zeros((32, 10), "f")
    functions.kernel("vectors")(1, 32, [a, y])
    u = a.astype("f8")
    w = u[:, :3]
    rows = [(u * u[:, ::-1]).sum(1), np.linalg.norm(w, axis=1), np.linalg.norm(w - w[:,
            [2, 0, 1]], axis=1), w[:, 1] / np.linalg.norm(w, axis=1), np.cross(w, w[:, [1, 2,
            0]])[:, 2], (u * u).sum(1), np.maximum(u[:, 3], 0.5), np.exp(u[:, 2]), u[:, 0] * u[:,
            0] + u[:, 0], (u[:, 3] + u[:, 2]) / 2]  # fmt: skip
    np.testing.assert_allclose(y, np.stack(rows, 1), rtol=1e-5, atol=1e-6)


def test_sixteen_bit_types_round_at_every_operation(functions):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    a, b = torch.randn(64).half(), torch.randn(64).bfloat16()
    y, z = torch.zeros_like(a), torch.zeros_like(b)
    functions.kernel("sixteen")(2, 32, [a, b, y, z])
    assert torch.equal(y, a * a + a - torch.tensor(0.5).half())
    assert torch.equal(z, b * b + b)


def test_contraction_is_off():
    text = """#include <metal_stdlib>
using namespace metal;
kernel void k(device const float* a [[buffer(0)]], device float* y [[buffer(1)]],
              uint i [[thread_position_in_grid]]) { y[i] = a[i] * a[i] - a[i + 64]; }
"""
    rng = np.random.default_rng(3)
    a = rng.standard_normal(128).astype("f")
    a[64:] = a[:64] * a[:64]
    y = np.ones(64, "f")
    for checked in (False, True):
        Library("contract.metal", text=text, checked=checked).kernel("k")(2, 32, [a, y])
        assert not y.any()
