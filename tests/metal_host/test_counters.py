"""Counters: exact for kernels whose traffic is known."""

import numpy as np
import pytest
from metal_text import HEAD

from torch_mps_fusion.metal_host import Library

TEXT = (
    HEAD
    + """
kernel void traffic(device const float* x [[buffer(0)]], device const half* h [[buffer(1)]],
                    device float4* y [[buffer(2)]], device atomic_uint* c [[buffer(3)]],
                    constant uint& twice [[buffer(4)]], uint i [[thread_position_in_grid]],
                    uint tid [[thread_position_in_threadgroup]]) {
  threadgroup float part[64];
  part[tid] = x[i / 2];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = float4(part[63 - tid] + h[i]);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  float s = simd_sum(part[tid]);
  if (s == 1e9f) y[i] = 0;
  atomic_fetch_add_explicit(c, 1u, memory_order_relaxed);
  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
}
kernel void update(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] += 1; }
"""
)


@pytest.mark.parametrize("count_only", (False, True))
def test_exact_counts(count_only):
    kernel = Library("traffic.metal", text=TEXT, checked=True).kernel("traffic")
    x, h = np.ones(200, np.float32), np.ones(512, np.float16)
    y, c = np.zeros((128, 4), np.float32), np.zeros(1, np.uint32)
    result = kernel(2, 64, [x, h, y, c, 1], count_only=count_only)
    b, n = result.buffers, result.counters
    assert (b["x"].read, b["x"].read_distinct, b["x"].written) == (512, 256, 0)
    assert (b["h"].read, b["h"].read_distinct) == (256, 256)
    assert (b["y"].written, b["y"].written_distinct, b["y"].read) == (2048, 2048, 0)
    assert (b["c"].atomics, b["c"].read, b["c"].written) == (128, 0, 0)
    assert (b["twice"].read, b["twice"].read_distinct) == (0, 0)
    assert (n.barriers, n.simd_barriers, n.simd_ops) == (2, 4, 4)
    assert (n.atomics, n.fences, n.spins, n.threadgroup_bytes) == (128, 128, 0, 256)
    assert (n.threadgroup_written, n.threadgroup_read) == (512, 1024)
    assert (result.started, result.finished, result.lost) == (2, 2, 0)


def test_ticks_are_steps_of_the_scheduler():
    """One clock for all threads of a launch; nobody's goes back."""
    text = (
        HEAD
        + """
kernel void clock(device uint* t [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  t[2 * i] = MSL_TICKS();
  threadgroup_barrier(mem_flags::mem_none);
  t[2 * i + 1] = MSL_TICKS();
}
"""
    )
    t = np.zeros((128, 2), np.uint32)
    result = Library("clock.metal", text=text).kernel("clock")(2, 64, [t])
    # who comes last to the barrier goes on at once
    assert (t[:, 1] >= t[:, 0]).all() and (t[:, 1] == t[:, 0]).sum() == 2
    assert t.max() <= result.counters.switches


def test_read_and_write_of_one_place_are_both_counted():
    x = np.zeros(64, np.float32)
    counted = (
        Library("traffic.metal", text=TEXT, checked=True).kernel("update")(2, 32, [x]).buffers["x"]
    )
    assert (counted.read, counted.written) == (256, 256)
    assert (counted.read_distinct, counted.written_distinct) == (256, 256)


def test_plain_builds_count_what_needs_no_instrumentation():
    kernel = Library("traffic.metal", text=TEXT).kernel("traffic")
    args = [np.ones(200, np.float32), np.ones(512, np.float16), np.zeros((128, 4), np.float32)]
    result = kernel(2, 64, [*args, np.zeros(1, np.uint32), 1])
    assert result.buffers is None
    assert (result.counters.barriers, result.counters.simd_ops, result.counters.atomics) == (
        2,
        4,
        128,
    )


def test_spins_are_counted():
    text = (
        HEAD
        + """
kernel void k(device atomic_uint* c [[buffer(0)]], uint g [[threadgroup_position_in_grid]]) {
  if (g == 1) atomic_store_explicit(c, 1u, memory_order_relaxed);
  else while (atomic_load_explicit(c, memory_order_relaxed) == 0) {}
}
"""
    )
    result = Library("spin.metal", text=text).kernel("k")(2, 1, [np.zeros(1, np.uint32)])
    assert result.counters.spins >= 1


def test_contiguous_loops_are_counted():
    """A compiler that made wide vectors of these loads would hide them from the checks."""
    text = (
        HEAD
        + """
kernel void k(device const uint* x [[buffer(0)]], device uint* y [[buffer(1)]],
              constant uint& n [[buffer(2)]], uint t [[thread_position_in_grid]]) {
  uint sum = 0;
  for (uint i = t * n; i < (t + 1) * n; ++i) sum += x[i];
  y[t] = sum;
}
"""
    )
    x, y = np.arange(4096, dtype=np.uint32), np.zeros(32, np.uint32)
    result = Library("sweep.metal", text=text, checked=True).kernel("k")(1, 32, [x, y, 128])
    assert y.sum() == x.sum()
    assert (result.buffers["x"].read, result.buffers["x"].read_distinct) == (x.nbytes, x.nbytes)
