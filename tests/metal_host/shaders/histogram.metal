// counts[b] += how many of x fall into bin b.  x: [n] uchar; counts: [256], zero before the launch.
// Threadgroup atomics first, one device atomic a bin and threadgroup after. The bins are plain
// words outside of the counting, so that what the barriers order can be checked.
#include <metal_atomic>
#include <metal_stdlib>
#pragma METAL fp contract(off)
using namespace metal;

kernel void histogram(device const uchar* x [[buffer(0)]], device atomic_uint* counts [[buffer(1)]],
                      constant uint& n [[buffer(2)]], uint i [[thread_position_in_grid]],
                      uint all [[threads_per_grid]], uint tid [[thread_position_in_threadgroup]],
                      uint threads [[threads_per_threadgroup]]) {
  threadgroup uint bins[256];
  threadgroup atomic_uint* counters = (threadgroup atomic_uint*)bins;
  for (uint b = tid; b < 256; b += threads) bins[b] = 0;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (; i < n; i += all) atomic_fetch_add_explicit(&counters[x[i]], 1u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint b = tid; b < 256; b += threads) {
    if (bins[b] != 0) atomic_fetch_add_explicit(&counts[b], bins[b], memory_order_relaxed);
  }
}
