// out[0] = sum of x in one dispatch: every threadgroup leaves a partial sum and takes a ticket, the
// one with the last ticket adds the partial sums in order, so that the bits do not depend on it.
// x: [groups][n]; partial: [groups]; ticket: one word, zero before the launch and after it.

// metal_host: msl 3.2
#include <metal_stdlib>
#pragma METAL fp contract(off)
using namespace metal;

kernel void last_arriver(
    device const float* x [[buffer(0)]], coherent(device) device float* partial [[buffer(1)]],
    device float* out [[buffer(2)]], device atomic_uint* ticket [[buffer(3)]],
    constant uint& n [[buffer(4)]], uint group [[threadgroup_position_in_grid]],
    uint groups [[threadgroups_per_grid]], uint tid [[thread_position_in_threadgroup]],
    uint threads [[threads_per_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float part[32];
  float sum = 0;
  for (uint i = tid; i < n; i += threads) sum += x[group * n + i];
  sum = simd_sum(sum);
  if (lane == 0) part[simdgroup] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid != 0) return;
  sum = 0;
  for (uint i = 0; i < simdgroups; ++i) sum += part[i];
  partial[group] = sum;
  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
  const uint before = atomic_fetch_add_explicit(ticket, 1u, memory_order_relaxed);
  if (before + 1 != groups) return;
  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
  sum = 0;
  for (uint i = 0; i < groups; ++i) sum += partial[i];
  out[0] = sum;
  atomic_store_explicit(ticket, 0u, memory_order_relaxed);
}
