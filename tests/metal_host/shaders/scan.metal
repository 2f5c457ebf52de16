// y = inclusive prefix sums of every row of x.  x, y: [rows][n] uint.  One threadgroup a row.
// Lanes scan with shuffles, one simdgroup scans the simdgroups' sums, a carry joins the chunks.
#include <metal_stdlib>
#pragma METAL fp contract(off)
using namespace metal;

static inline uint lane_scan(uint v, uint lane) {
  for (ushort step = 1; step < 32; step *= 2) {
    const uint below = simd_shuffle_up(v, step);
    if (lane >= step) v += below;
  }
  return v;
}

kernel void inclusive_scan(device const uint* x [[buffer(0)]], device uint* y [[buffer(1)]],
                           constant uint& n [[buffer(2)]],
                           uint row [[threadgroup_position_in_grid]],
                           uint tid [[thread_position_in_threadgroup]],
                           uint threads [[threads_per_threadgroup]],
                           uint simdgroup [[simdgroup_index_in_threadgroup]],
                           uint simdgroups [[simdgroups_per_threadgroup]],
                           uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint sums[32];
  uint carry = 0;
  for (uint base = 0; base < n; base += threads) {
    const uint i = base + tid;
    uint v = lane_scan(i < n ? x[row * n + i] : 0u, lane);
    if (lane == 31) sums[simdgroup] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup == 0) {
      const uint s = lane_scan(lane < simdgroups ? sums[lane] : 0u, lane);
      if (lane < simdgroups) sums[lane] = s;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    v += carry + (simdgroup > 0 ? sums[simdgroup - 1] : 0u);
    carry += sums[simdgroups - 1];
    if (i < n) y[row * n + i] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}
