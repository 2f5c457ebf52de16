"""The PTX that is made of shaders, read as text; ptxas takes it where it is installed.  No GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from samples import CONSTANTS, SHADERS

from torch_mps_fusion.metal_host import CompileError, cuda
from torch_mps_fusion.metal_host.ptx import Module, assemble, build

needs_ptxas = pytest.mark.skipif(cuda.ptxas() is None, reason="ptxas is not installed")
needs_libdevice = pytest.mark.skipif(cuda.libdevice() is None, reason="libdevice is not installed")

HEAD = """// metal_host: msl 3.2
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#pragma METAL fp contract(off)
using namespace metal;
"""
KERNEL = """kernel void k(device float* x [[buffer(0)]], device uint* u [[buffer(1)]],
              device half* h [[buffer(2)]], device bfloat* b [[buffer(3)]],
              device atomic_uint* c [[buffer(4)]], device atomic_int* s [[buffer(5)]],
              device atomic_float* f [[buffer(6)]], device atomic_ulong* l [[buffer(7)]],
              threadgroup uint* t [[threadgroup(0)]], uint i [[thread_position_in_threadgroup]]) {
  %s
}
"""


def ptx_of(tmp_path: Path, body: str, outside: str = "", attributes: str = "") -> str:
    """The entry that a kernel with this body becomes."""
    path = tmp_path / "k.metal"
    path.write_text(HEAD + outside + attributes + KERNEL % body)
    return entry(build(path), "k")


def entry(module: Module, name: str) -> str:
    found = re.search(rf"\.entry {name}\(.*?^\}}", module.text, re.S | re.M)
    assert found, module.text
    return found[0]


def instructions(text: str, pattern: str) -> list[str]:
    return re.findall(rf"\b(?:{pattern})[\w.]*", text)


FENCES = {
    ("mem_device", "seq_cst", "device"): ["fence.sc.gpu"],
    ("mem_device", "seq_cst", "system"): ["fence.sc.sys"],
    ("mem_threadgroup", "seq_cst", "threadgroup"): ["fence.sc.cta"],
    ("mem_threadgroup", "seq_cst", "simdgroup"): ["fence.sc.cta"],
    ("mem_device", "relaxed", "device"): [],
    ("mem_none", "seq_cst", "device"): [],
    ("mem_device", "seq_cst", "thread"): [],
}


@pytest.mark.parametrize("flags, order, scope", FENCES, ids="-".join)
def test_fences(tmp_path: Path, flags: str, order: str, scope: str) -> None:
    call = f"atomic_thread_fence(mem_flags::{flags}, memory_order_{order}, thread_scope_{scope});"
    text = ptx_of(tmp_path, f"x[i] = 1; {call} x[i] = 2;")
    assert instructions(text, "fence|membar") == FENCES[flags, order, scope]
    # whatever it becomes, no store moves over it
    assert len(instructions(text, r"st\.global")) == 2


def test_ticks_are_nanoseconds(tmp_path: Path) -> None:
    text = ptx_of(tmp_path, "u[i] = MSL_TICKS(); x[i] = 1; u[i + 1] = MSL_TICKS();")
    assert len(re.findall(r"%globaltimer", text)) == 2


def test_fence_scope_is_device_unless_said(tmp_path: Path) -> None:
    text = ptx_of(tmp_path, "atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst);")
    assert instructions(text, "fence") == ["fence.sc.gpu"]


R = "memory_order_relaxed"
ATOMICS = {
    f"u[i] = atomic_load_explicit(c, {R});": "ld.relaxed.gpu.global.b32",
    f"atomic_store_explicit(c, 3u, {R});": "st.relaxed.gpu.global.b32",
    f"u[i] = atomic_exchange_explicit(c, 3u, {R});": "atom.relaxed.gpu.global.exch.b32",
    f"u[i] = atomic_fetch_add_explicit(c, 3u, {R});": "atom.relaxed.gpu.global.add.u32",
    f"u[i] = atomic_fetch_sub_explicit(c, 3u, {R});": "atom.relaxed.gpu.global.add.u32",
    f"u[i] = atomic_fetch_and_explicit(c, 3u, {R});": "atom.relaxed.gpu.global.and.b32",
    f"u[i] = atomic_fetch_or_explicit(c, 3u, {R});": "atom.relaxed.gpu.global.or.b32",
    f"u[i] = atomic_fetch_xor_explicit(c, 3u, {R});": "atom.relaxed.gpu.global.xor.b32",
    f"u[i] = atomic_fetch_min_explicit(c, 3u, {R});": "atom.relaxed.gpu.global.min.u32",
    f"u[i] = atomic_fetch_max_explicit(c, 3u, {R});": "atom.relaxed.gpu.global.max.u32",
    f"u[i] = atomic_fetch_min_explicit(s, 3, {R});": "atom.relaxed.gpu.global.min.s32",
    f"u[i] = atomic_fetch_max_explicit(s, 3, {R});": "atom.relaxed.gpu.global.max.s32",
    f"x[i] = atomic_fetch_add_explicit(f, 1.0f, {R});": "atom.relaxed.gpu.global.add.f32",
    f"atomic_max_explicit(l, 3ul, {R});": "atom.relaxed.gpu.global.max.u64",
    f"atomic_min_explicit(l, 3ul, {R});": "atom.relaxed.gpu.global.min.u64",
    f"uint e = 3; u[i] = atomic_compare_exchange_weak_explicit(c, &e, 4u, {R}, {R}) + e;": (
        "atom.relaxed.gpu.global.cas.b32"
    ),
}


def test_device_atomics_are_relaxed_at_device_scope(tmp_path: Path) -> None:
    """All in one kernel: what is volatile keeps its order."""
    text = ptx_of(tmp_path, "\n".join(f"{{ {body} }}" for body in ATOMICS))
    assert instructions(text, r"atom|red|(?:ld|st)\.relaxed") == list(ATOMICS.values())


def test_ordered_atomics_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "k.metal"
    path.write_text(HEAD + KERNEL % "u[i] = atomic_load_explicit(c, memory_order_acquire);")
    with pytest.raises(CompileError, match="atomic_load_explicit: the PTX target has relaxed"):
        build(path, metal_version=410)


@pytest.mark.parametrize("order", ["acquire", "release", "acq_rel"])
def test_fences_of_later_orders(tmp_path: Path, order: str) -> None:
    path = tmp_path / "k.metal"
    call = f"atomic_thread_fence(mem_flags::mem_device, memory_order_{order}, {{}});"
    scopes = ("thread_scope_threadgroup", "thread_scope_device", "thread_scope_system")
    path.write_text(HEAD + KERNEL % "x[i] = 1;".join(call.format(s) for s in scopes))
    text = entry(build(path, metal_version=410), "k")
    assert instructions(text, "fence") == [f"fence.acq_rel.{s}" for s in ("cta", "gpu", "sys")]


def test_threadgroup_atomics_are_relaxed_at_threadgroup_scope(tmp_path: Path) -> None:
    text = ptx_of(
        tmp_path,
        f"threadgroup atomic_uint n; u[i] = atomic_fetch_add_explicit(&n, 1u, {R});"
        f"u[i + 1] = atomic_load_explicit(&n, {R}); atomic_store_explicit(&n, 5u, {R});",
    )
    assert instructions(text, r"atom|red|(?:ld|st)\.relaxed") == [
        "atom.relaxed.cta.shared.add.u32",
        "ld.relaxed.cta.shared.b32",
        "st.relaxed.cta.shared.b32",
    ]


def test_a_poll_is_read_again(tmp_path: Path) -> None:
    text = ptx_of(tmp_path, f"while (atomic_load_explicit(c, {R}) == 0) {{}}")
    loop = re.search(r"(\$L\w+):.*?ld\.relaxed\.gpu.*?bra\s+\1;", text, re.S)
    assert loop, text


def test_threadgroup_memory_static_and_dynamic(tmp_path: Path) -> None:
    path = tmp_path / "k.metal"
    body = "threadgroup float a[48]; threadgroup uchar flag; a[i] = x[i]; flag = u[9]; t[i] = u[i];"
    body += "threadgroup_barrier(mem_flags::mem_threadgroup); x[i] = a[i ^ 1] + flag + t[i ^ 1];"
    path.write_text(HEAD + KERNEL % body)
    module = build(path)
    assert module.kernels["k"].threadgroup_bytes == 48 * 4 + 1
    assert re.search(r"\.extern \.shared \.align 16 \.b8 \w+\[\];", module.text)
    assert instructions(entry(module, "k"), r"bar\.") == ["bar.sync"]
    assert len(instructions(entry(module, "k"), r"st\.shared")) == 3


NO_FMA = {
    "float": "x[i] = x[i + 1] * x[i + 2] + x[i + 3];",
    "over two statements": "float p = x[i + 1] * x[i + 2]; x[i] = p + x[i + 3]; x[i + 9] = p;",
    "subtraction": "x[i] = x[i + 1] - x[i + 2] * x[i + 3];",
    "half": "h[i] = h[i + 1] * h[i + 2] + h[i + 3];",
    "bfloat": "b[i] = b[i + 1] * b[i + 2] + b[i + 3];",
    "vector": "device float4* v = (device float4*)x; v[i] = v[i + 1] * v[i + 2] + v[i + 3];",
    "dot and mix": "x[i] = dot(float3(x[1], x[2], x[3]), float3(x[4])) + mix(x[5], x[6], x[7]);",
    "accumulation": "float a = 0; for (uint j = 0; j < 8; ++j) a += x[j] * x[i + j]; x[i] = a;",
}


@pytest.mark.parametrize("name", NO_FMA)
def test_nothing_is_contracted(tmp_path: Path, name: str) -> None:
    text = ptx_of(tmp_path, NO_FMA[name])
    assert instructions(text, r"fma|mad\.r[nmzp]|mul\.f|add\.f") == []
    assert instructions(text, r"mul\.rn") and instructions(text, r"(?:add|sub)\.rn")


def test_fma_is_fma(tmp_path: Path) -> None:
    text = ptx_of(tmp_path, "x[i] = fma(x[i + 1], x[i + 2], x[i + 3]);")
    assert instructions(text, "fma") == ["fma.rn.f32"]
    assert instructions(text, r"mul\.rn|add\.rn") == []


@pytest.mark.parametrize("array, kind", [("h", "f16"), ("b", "bf16")])
def test_sixteen_bits_round_at_every_operation(tmp_path: Path, array: str, kind: str) -> None:
    text = ptx_of(tmp_path, "h[i] = h[1] * h[2] + h[3];".replace("h", array))
    rounded = instructions(text, rf"(?:mul|add)\.rn\.{kind}|cvt\.rn\.{kind}\.f32")
    assert len(rounded) == 2, text


def test_division_and_square_root_are_correctly_rounded(tmp_path: Path) -> None:
    text = ptx_of(tmp_path, "x[i] = x[i + 1] / x[i + 2] + sqrt(x[i + 3]) + rsqrt(x[i + 4]);")
    assert instructions(text, "div|sqrt|rsqrt|rcp") == [
        "div.rn.f32",
        "sqrt.rn.f32",
        "sqrt.rn.f32",
        "rcp.rn.f32",
    ]


def test_literals_are_float(tmp_path: Path) -> None:
    text = ptx_of(tmp_path, "x[i] = x[i + 1] * 0.1 + 1.0 / 3.0;")
    assert not re.search(r"\.f64|\.rn\.f64|cvt\.f64", text)


def test_launch_bounds(tmp_path: Path) -> None:
    attribute = "[[max_total_threads_per_threadgroup(384)]] "
    assert ".maxntid 384, 1, 1\n" in ptx_of(tmp_path, "x[i] = 1;", attributes=attribute)
    assert ".maxntid" not in ptx_of(tmp_path, "x[i] = 1;")


def test_launch_bounds_reach_only_their_kernel(tmp_path: Path) -> None:
    path = tmp_path / "two.metal"
    plain = "kernel void plain(device float* x [[buffer(0)]]) { x[0] = 1; }\n"
    bound = "[[kernel, max_total_threads_per_threadgroup(64)]] void bound(\n"
    path.write_text(HEAD + plain + bound + "    device float* x [[buffer(0)]]) { x[0] = 2; }\n")
    module = build(path)
    assert ".maxntid" not in entry(module, "plain")
    assert ".maxntid 64, 1, 1" in entry(module, "bound")
    assert [module.kernels[k].max_threads for k in ("plain", "bound")] == [None, 64]


def test_function_constants(tmp_path: Path) -> None:
    path = tmp_path / "c.metal"
    path.write_text(
        HEAD
        + "constant uint many [[function_constant(0)]];\n"
        + "constant bool on [[function_constant(1)]];\n"
        + "kernel void k(device uint* u [[buffer(0)]]) { if (on) u[0] = many; else u[1] = 9; }\n"
    )
    on = entry(build(path, {"many": 777, "on": True}), "k")
    off = entry(build(path, {"many": 777, "on": False}), "k")
    assert re.search(r"st\.global\.b32\s+\[%rd\d+\], 777;", on)
    assert re.search(r"st\.global\.b32\s+\[%rd\d+\+4\], 9;", off)
    assert "bra" not in on + off


def test_indexed_arrays_stay_in_registers(tmp_path: Path) -> None:
    body = "float4 v[16]; device float4* y = (device float4*)x + i;\n"
    body += "for (uint j = 0; j < 16; ++j) v[j] = y[j * 32];\n"
    body += "float4 a = 0; for (uint j = 0; j < 16; ++j) a = fma(v[15 - j], a, v[0]); y[0] = a;"
    text = ptx_of(tmp_path, body)
    assert "local" not in text and len(instructions(text, r"ld\.global")) == 16


def test_program_scope_tables(tmp_path: Path) -> None:
    table = "constant float table[4] = {1, 2, 3, 5};\nconstant constexpr uint N = 3;\n"
    text = ptx_of(tmp_path, "x[i] = table[i & N];", outside=table)
    assert instructions(text, r"ld\.(?:global|const)")


MATRIX = """simdgroup_{0}8x8 p, q;
simdgroup_{1}8x8 r = make_filled_simdgroup_matrix<{1}, 8, 8>(0.0{2});
simdgroup_load(p, {3}, 8); simdgroup_load(q, {3} + 64, 8);
for (int j = 0; j < 4; ++j) simdgroup_multiply_accumulate(r, p, q, r);
simdgroup_store(r, {4}, 8);"""
MATRICES = {
    "half": (
        MATRIX.format("half", "float", "f", "h", "x"),
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32",
    ),
    "bfloat": (
        MATRIX.format("bfloat", "float", "f", "b", "x"),
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32",
    ),
    "half sums": (
        MATRIX.format("half", "half", "h", "h", "h + 128"),
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32",
    ),
}


@pytest.mark.parametrize("name", MATRICES)
def test_matrices_use_tensor_cores(tmp_path: Path, name: str) -> None:
    body, instruction = MATRICES[name]
    assert instructions(ptx_of(tmp_path, body), "mma") == [instruction] * 4


def test_float_matrices_stay_exact(tmp_path: Path) -> None:
    text = ptx_of(tmp_path, MATRIX.format("float", "float", "f", "x", "x + 128"))
    assert instructions(text, "mma") == [] and "tf32" not in text
    assert instructions(text, "mul.rn.f32") and instructions(text, "fma") == []
    assert len(instructions(text, r"mul\.rn\.f32")) % 16 == 0


def test_native_operand_order_needs_no_shuffle() -> None:
    text = entry(build(SHADERS / "native_tile.metal"), "native_tile")
    assert instructions(text, "mma") == ["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"]
    assert instructions(text, "shfl|movmatrix|bar") == []
    assert instructions(text, r"ld\.global\.v4") == ["ld.global.v4.b32"]


ONE = """exp exp2 exp10 log log2 log10 sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh
erf sinpi cospi tanpi sqrt rsqrt fabs floor ceil rint round trunc fract sign saturate"""
TWO = "pow powr atan2 fmod nextafter fmin fmax fdim copysign divide step"


@needs_libdevice
def test_mathematical_functions_are_linked(tmp_path: Path) -> None:
    calls = [f"x[{k}] = {name}(x[i + {k}]);" for k, name in enumerate(ONE.split())]
    calls += [f"x[{k + 99}] = {name}(x[i + {k}], x[i]);" for k, name in enumerate(TWO.split())]
    calls += ["int e; x[i] = ldexp(x[1], 3) + frexp(x[2], e); x[i + 1] = e;"]
    text = ptx_of(tmp_path, "\n".join(calls))
    assert "__nv_" not in text and instructions(text, "ex2")


@pytest.mark.parametrize("part", ["nvvm/libdevice/libdevice.10.bc", "lib/libdevice.10.bc"])
def test_libdevice_of_a_toolkit_and_of_the_triton_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    cuda._roots.cache_clear()
    try:
        (tmp_path / part).parent.mkdir(parents=True)
        (tmp_path / part).touch()
        assert cuda._roots()[0] == tmp_path
        monkeypatch.setattr(cuda, "_roots", lambda: (tmp_path,))
        assert cuda.libdevice() == tmp_path / part
    finally:
        monkeypatch.undo()
        cuda._roots.cache_clear()


def test_without_libdevice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "libdevice", lambda: None)
    ptx_of(tmp_path, "x[i] = sqrt(x[i]);")
    with pytest.raises(CompileError, match="expf, tanhf need libdevice, which a CUDA toolkit"):
        ptx_of(tmp_path, "x[i] = exp(x[i]) + tanh(x[i]);")


def test_without_ptxas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "ptxas", lambda: None)
    with pytest.raises(CompileError, match="no ptxas: install a CUDA toolkit"):
        assemble(Module("k.metal", "", {}))


def test_errors_name_the_shader_line(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"k\.metal:14.*no_such_thing"):
        ptx_of(tmp_path, "\n\n\n  x[i] = no_such_thing;")


@needs_ptxas
def test_ptxas_refusal_is_a_compile_error() -> None:
    with pytest.raises(CompileError, match="broken.metal: "):
        assemble(Module("broken.metal", ".version 8.5\n.target sm_90a\nnonsense", {}))


@pytest.mark.parametrize("registers", [0, 15, 256])
def test_register_limit(registers: int) -> None:
    with pytest.raises(ValueError, match=f"max_registers: got {registers}, accepted: 16 to 255"):
        assemble(Module("k.metal", "", {}), max_registers=registers)


@needs_ptxas
@pytest.mark.parametrize("path", sorted(SHADERS.glob("*.metal")), ids=lambda p: p.name)
def test_sample_shaders_become_cubins(path: Path) -> None:
    module = build(path, CONSTANTS.get(path.name))
    assert ".nc" not in module.text, "a load past the coherent caches"
    cubin = assemble(module)
    assert cubin.data[:4] == b"\x7fELF"
    assert set(cubin.resources) == set(module.kernels)
    for name, used in cubin.resources.items():
        assert used.registers > 0 and used.spill_stores == used.spill_loads == 0
        assert used.threadgroup_bytes >= module.kernels[name].threadgroup_bytes


ARGUMENTS = """struct Args {{ uint n; float scale; uint rest[{words}]; }};
kernel void other(device float* x [[buffer(0)]]) {{ x[0] = 1; }}
kernel void k(device float* x [[buffer(0)]], constant Args& a [[buffer(3)]],
              constant uint& b [[buffer(1)]], uint i [[thread_position_in_threadgroup]]) {{
  if (i < a.n) x[i] = a.scale + b;
}}
"""


def test_constant_references_by_value(tmp_path: Path) -> None:
    path = tmp_path / "k.metal"
    path.write_text(HEAD + ARGUMENTS.format(words=4))
    module = build(path, kernels=["k"], by_value=True, threads={"k": 64})
    assert list(module.kernels) == ["k"] and "other" not in re.findall(
        r"\.entry (\w+)", module.text
    )
    assert module.kernels["k"].values == (1, 3)  # by buffer index, whatever the order
    text = entry(module, "k")
    # 372 bytes of buffers and offsets, then slots of 128 bytes from 384 on
    offsets = {int(o) for o in re.findall(r"ld\.param\S*\s.*\[\S+\+(\d+)\]", text)}
    assert offsets == {384, 512, 516}, text
    assert not re.search(r"\bld\.(global|local|[bu]\d)", text), text
    assert "\n.maxntid 64, 1, 1\n" in text


def test_values_are_small_and_kernels_known(tmp_path: Path) -> None:
    path = tmp_path / "k.metal"
    path.write_text(HEAD + ARGUMENTS.format(words=31))
    with pytest.raises(CompileError, match="at most 128 bytes"):
        build(path, kernels=["k"], by_value=True)
    with pytest.raises(CompileError, match="no kernel absent; there are: k, other"):
        build(path, kernels=["absent"])
