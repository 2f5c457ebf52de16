"""Operations between lanes and 8x8 matrices, against numpy."""

import numpy as np
import pytest
from metal_text import HEAD

from torch_mps_fusion.metal_host import Library

OPS = {
    "simd_sum(v)": lambda v: np.full(32, v.sum()),
    "simd_product(v)": lambda v: np.full(32, np.prod(v)),
    "simd_min(v)": lambda v: np.full(32, v.min()),
    "simd_max(v)": lambda v: np.full(32, v.max()),
    "simd_prefix_exclusive_sum(v)": lambda v: np.cumsum(v) - v,
    "simd_prefix_inclusive_sum(v)": np.cumsum,
    "simd_prefix_inclusive_product(v)": np.cumprod,
    "simd_shuffle(v, ushort(31 - lane))": lambda v: v[::-1],
    "simd_shuffle_xor(v, 5)": lambda v: v[np.arange(32) ^ 5],
    "simd_shuffle_up(v, 3)": lambda v: np.r_[v[:3], v[:-3]],
    "simd_shuffle_down(v, 3)": lambda v: np.r_[v[3:], v[-3:]],
    "simd_shuffle_rotate_up(v, 3)": lambda v: np.roll(v, 3),
    "simd_shuffle_rotate_down(v, 3)": lambda v: np.roll(v, -3),
    "simd_shuffle_and_fill_up(v, v + 10, 3)": lambda v: np.r_[v[-3:] + 10, v[:-3]],
    "simd_shuffle_and_fill_down(v, v + 10, 3)": lambda v: np.r_[v[3:], v[:3] + 10],
    "simd_broadcast(v, 7)": lambda v: np.full(32, v[7]),
    "simd_broadcast_first(v)": lambda v: np.full(32, v[0]),
    "quad_sum(v)": lambda v: np.repeat(v.reshape(8, 4).sum(1), 4),
    "quad_max(v)": lambda v: np.repeat(v.reshape(8, 4).max(1), 4),
    "quad_broadcast(v, 2)": lambda v: np.repeat(v[2::4], 4),
    "quad_shuffle_xor(v, 1)": lambda v: v[np.arange(32) ^ 1],
    "T(simd_any(v > 1.9f))": lambda v: np.full(32, (v > 1.9).any()),
    "T(simd_all(v > 0))": lambda v: np.full(32, (v > 0).all()),
    "T(ulong(simd_ballot(lane % 3 == 0)) >> lane & 1)": lambda v: np.arange(32) % 3 == 0,
    "T(simd_is_first())": lambda v: np.arange(32) == 0,
}
TEXT = (
    HEAD
    + """
template <class T>
kernel void lanes(device const T* x [[buffer(0)]], device T* y [[buffer(1)]],
                  uint i [[thread_position_in_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]], uint n [[threads_per_threadgroup]]) {{
  T v = x[i];
  device T* out = y + i;
  {}
}}
template [[host_name("lanes_float")]] [[kernel]] decltype(lanes<float>) lanes<float>;
template [[host_name("lanes_half")]] [[kernel]] decltype(lanes<half>) lanes<half>;
kernel void bits(device const uint* x [[buffer(0)]], device uint* y [[buffer(1)]],
                 uint i [[thread_position_in_threadgroup]]) {{
  uint v = x[i];
  y[3 * i] = simd_and(v | 6);
  y[3 * i + 1] = simd_or(v & 0xf0f0f0f0u);
  y[3 * i + 2] = simd_xor(v);
}}
kernel void vectors(device const float4* x [[buffer(0)]], device float4* y [[buffer(1)]],
                    uint i [[thread_position_in_threadgroup]]) {{
  y[i] = simd_sum(x[i]) + simd_shuffle_xor(x[i], 1);
}}
""".format("\n  ".join(f"out[{i} * n] = {op};" for i, op in enumerate(OPS)))
)


@pytest.fixture(scope="module", params=(False, True), ids=("plain", "checked"))
def library(request):
    return Library("lanes.metal", text=TEXT, checked=request.param)


@pytest.mark.parametrize(("name", "dtype", "rtol"), [("float", "f4", 1e-5), ("half", "f2", 4e-3)])
def test_lane_operations(library, name, dtype, rtol):
    x = np.random.default_rng(0).uniform(0.8, 1.2, 64).astype(dtype)
    y = np.zeros((len(OPS), 64), dtype)
    for seed in range(3):
        schedule = ("fifo", "random", "priority")[seed]
        library.kernel(f"lanes_{name}")(1, 64, [x, y], schedule=schedule, seed=seed)
        for row, (op, want) in zip(y, OPS.items(), strict=True):
            halves = [want(x[k : k + 32].astype("f8")) for k in (0, 32)]
            np.testing.assert_allclose(row, np.concatenate(halves), rtol=rtol, err_msg=op)


def test_bit_reductions(library):
    x = np.random.default_rng(1).integers(0, 2**32, 32, np.uint32)
    y = np.zeros((32, 3), np.uint32)
    library.kernel("bits")(1, 32, [x, y])
    want = [
        np.bitwise_and.reduce(x | 6),
        np.bitwise_or.reduce(x & 0xF0F0F0F0),
        np.bitwise_xor.reduce(x),
    ]
    assert (y == np.array(want)).all()


def test_vector_reductions(library):
    x = np.random.default_rng(2).standard_normal((32, 4)).astype("f")
    y = np.zeros_like(x)
    library.kernel("vectors")(1, 32, [x, y])
    np.testing.assert_allclose(y, x.sum(0) + x[np.arange(32) ^ 1], rtol=1e-4, atol=1e-5)


def test_lanes_that_have_returned_do_not_count():
    text = (
        HEAD
        + """
kernel void k(device float* x [[buffer(0)]], uint i [[thread_position_in_threadgroup]]) {
  if (i < 5) return;
  x[i] = simd_sum(x[i]);
}
"""
    )
    x = np.ones(32, np.float32)
    Library("part.metal", text=text).kernel("k")(1, 32, [x])
    assert x.tolist() == [1] * 5 + [27] * 27


MATRIX = (
    "#include <metal_simdgroup_matrix>\n"
    + HEAD
    + """
template <class T>
kernel void product(device const T* a [[buffer(0)]], device const T* b [[buffer(1)]],
                    device float* y [[buffer(2)]], device T* z [[buffer(3)]],
                    uint lane [[thread_index_in_simdgroup]]) {
  simdgroup_matrix<T, 8, 8> ma, mb, mt;
  simdgroup_float8x8 acc = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);
  simdgroup_load(ma, a, 8);
  simdgroup_load(mb, b, 16, ulong2(3, 2));
  simdgroup_load(mt, b, 16, ulong2(3, 2), true);
  simdgroup_multiply_accumulate(acc, ma, mb, acc);
  simdgroup_store(acc, y, 8);
  simdgroup_multiply(acc, ma, mt);
  simdgroup_store(acc, y + 64, 8, ulong2(0, 0), true);
  // every lane writes its two elements to where the layout says they are
  uint q = lane / 4, row = (q & 4) + (lane / 2) % 4, column = (q & 2) * 2 + (lane % 2) * 2;
  z[row * 8 + column] = ma.thread_elements()[0];
  z[row * 8 + column + 1] = ma.thread_elements()[1];
  threadgroup T tile[64];
  mb.thread_elements()[0] = T(lane);
  reinterpret_cast<thread vec<T, 2>&>(mb.thread_elements())[1] = T(lane) + T(0.5f);
  simdgroup_store(mb, tile, 8);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = lane; i < 64; i += 32) z[64 + i] = tile[i];
}
template [[host_name("product_float")]] [[kernel]] decltype(product<float>) product<float>;
template [[host_name("product_half")]] [[kernel]] decltype(product<half>) product<half>;
template [[host_name("product_bfloat")]] [[kernel]] decltype(product<bfloat>) product<bfloat>;
"""
)


@pytest.mark.parametrize("name", ("float", "half", "bfloat"))
@pytest.mark.parametrize("checked", (False, True), ids=("plain", "checked"))
def test_matrix(name, checked):
    torch = pytest.importorskip("torch")
    dtype = {"float": torch.float32, "half": torch.float16, "bfloat": torch.bfloat16}[name]
    torch.manual_seed(0)
    a, b = torch.randn(8, 8).to(dtype), torch.randn(16, 16).to(dtype)
    y, z = torch.zeros(2, 8, 8), torch.zeros(2, 8, 8, dtype=dtype)
    Library("product.metal", text=MATRIX, checked=checked).kernel(f"product_{name}")(
        1, 32, [a, b, y, z]
    )
    part = b[2:10, 3:11].double()
    torch.testing.assert_close(y[0].double(), a.double() @ part + 1, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(y[1].double(), (a.double() @ part.t()).t(), rtol=1e-5, atol=1e-5)
    assert torch.equal(z[0], a)
    lane = torch.arange(32)
    quarter = lane // 4
    row, column = (quarter & 4) + lane // 2 % 4, (quarter & 2) * 2 + lane % 2 * 2
    want = torch.zeros(8, 8)
    want[row, column], want[row, column + 1] = lane.float(), lane + 0.5
    assert torch.equal(z[1].float(), want.to(dtype).float())
