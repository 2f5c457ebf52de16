"""Atomics of every type in both memories, under many schedules."""

import numpy as np
import pytest
from metal_text import HEAD

from torch_mps_fusion.metal_host import Library

TEXT = (
    HEAD
    + """
constant constexpr memory_order R = memory_order_relaxed;
template <class T, class P>
void all(P p, T v) {
  atomic_fetch_add_explicit(p, v, R);
  atomic_fetch_sub_explicit(p + 1, v, R);
  atomic_fetch_min_explicit(p + 2, v, R);
  atomic_fetch_max_explicit(p + 3, v, R);
  atomic_fetch_and_explicit(p + 4, v, R);
  atomic_fetch_or_explicit(p + 5, v, R);
  atomic_fetch_xor_explicit(p + 6, v, R);
}
template <class T, class A>
kernel void integers(device const T* x [[buffer(0)]], device A* out [[buffer(1)]],
                     device T* old [[buffer(2)]], uint i [[thread_position_in_grid]],
                     uint tid [[thread_position_in_threadgroup]]) {
  threadgroup A local[8];
  if (tid < 8) atomic_store_explicit(&local[tid], atomic_load_explicit(&out[tid], R), R);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  all<T>(&local[0], x[i]);
  old[i] = atomic_fetch_add_explicit(&out[8], T(1), R);
  T seen = atomic_load_explicit(&out[9], R);
  while (!atomic_compare_exchange_weak_explicit(&out[9], &seen, seen + 3, R, R)) {
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid < 7) old[64 + tid] = atomic_load_explicit(&local[tid], R);
  all<T>(&out[0], x[i]);
}
#define INSTANCE(T) \\
  template [[host_name(#T "_ops")]] [[kernel]] \\
  decltype(integers<T, atomic<T>>) integers<T, atomic<T>>;
INSTANCE(int)
INSTANCE(uint)
kernel void others(device atomic_float* f [[buffer(0)]], device atomic<ulong>* w [[buffer(1)]],
                   device atomic_bool* b [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(f, float(i), R);
  atomic_fetch_sub_explicit(f + 1, 0.5f, R);
  if (i == 3) atomic_store_explicit(f + 2, 2.5f, R);
  atomic_max_explicit(w, ulong(i) << 33, R);
  atomic_min_explicit(w + 1, ulong(i) << 33, R);
  if (i == 4) atomic_exchange_explicit(b, true, R);
}
"""
)
RANDOM = [
    {"schedule": s, "seed": i}
    for i, s in enumerate(["fifo", *["random"] * 4, "priority", "reverse"])
]


@pytest.fixture(scope="module", params=(False, True), ids=("plain", "checked"))
def library(request):
    return Library("atomics.metal", text=TEXT, checked=request.param)


def wrapped(value, dtype):
    return int(np.array(value & 0xFFFFFFFF, np.uint32).astype(dtype))


@pytest.mark.parametrize("dtype", (np.int32, np.uint32))
@pytest.mark.parametrize("options", RANDOM, ids=str)
def test_integers(library, dtype, options):
    rng = np.random.default_rng(0)
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, 64, dtype)
    start = rng.integers(info.min, info.max, 10, dtype)
    out, old = start.copy(), np.zeros(71, dtype)
    library.kernel("int_ops" if dtype is np.int32 else "uint_ops")(1, 64, [x, out, old], **options)
    total = sum(map(int, x))
    want = [wrapped(int(start[0]) + total, dtype), wrapped(int(start[1]) - total, dtype)]
    want += [min(start[2], x.min()), max(start[3], x.max()), np.bitwise_and.reduce(x) & start[4],
             np.bitwise_or.reduce(x) | start[5], np.bitwise_xor.reduce(x) ^ start[6]]  # fmt: skip
    assert out[:7].tolist() == want == old[64:].tolist()
    with np.errstate(over="ignore"):
        assert sorted(old[:64] - start[8]) == list(range(64))
        assert out[9:] - start[9:] == 3 * 64


@pytest.mark.parametrize("options", RANDOM, ids=str)
def test_other_types(library, options):
    f = np.zeros(3, np.float32)
    w, b = np.array([5, 2**60], np.uint64), np.zeros(1, bool)
    library.kernel("others")(2, 64, [f, w, b], **options)
    assert f.tolist() == [127 * 64, -64, 2.5]
    assert w.tolist() == [127 << 33, 0] and b[0]


def test_several_os_threads():
    f = np.zeros(3, np.float32)
    w, b = np.array([5, 2**60], np.uint64), np.zeros(1, bool)
    kernel = Library("atomics.metal", text=TEXT).kernel("others")
    kernel(40, 64, [f, w, b], threads=3)
    assert f.tolist() == [2559 * 1280, -1280, 2.5]
    assert w.tolist() == [2559 << 33, 0] and b[0]
