// run: {"threadgroup": 64}
#include <metal_stdlib>
using namespace metal;
// Minimum and maximum are atomics like the others.
kernel void faulty(device atomic_uint* c [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  if (tid == 0) ((device uint*)c)[0] = 0;
  atomic_fetch_max_explicit(c, tid, memory_order_relaxed);  // fault: race
}
kernel void fixed(device atomic_uint* c [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  if (tid == 0) ((device uint*)c)[0] = 0;
  threadgroup_barrier(mem_flags::mem_device);
  atomic_fetch_max_explicit(c, tid, memory_order_relaxed);
}
