// run: {"threadgroup": 64}
#include <metal_stdlib>
using namespace metal;
kernel void faulty(device float* x [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  threadgroup atomic_uint sum;
  atomic_fetch_add_explicit(&sum, tid, memory_order_relaxed);  // fault: uninitialised
}
kernel void fixed(device float* x [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  threadgroup atomic_uint sum;
  if (tid == 0) atomic_store_explicit(&sum, 0u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  atomic_fetch_add_explicit(&sum, tid, memory_order_relaxed);
}
