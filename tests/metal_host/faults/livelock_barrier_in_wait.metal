// run: {"grid": 1, "threadgroup": 64, "plain": true}
#include <metal_stdlib>
using namespace metal;
// A whole threadgroup that polls together: the barrier in the loop is no progress.
kernel void faulty(device atomic_uint* c [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  threadgroup uint seen;
  do {
    if (tid == 0) seen = atomic_load_explicit(c, memory_order_relaxed);  // fault: livelock
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint now = seen;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (now) break;
  } while (true);
}
kernel void fixed(device atomic_uint* c [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  threadgroup uint seen;
  for (uint i = 0; i < 100; ++i) {
    if (tid == 0) seen = atomic_load_explicit(c, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint now = seen;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (now) break;
  }
}
