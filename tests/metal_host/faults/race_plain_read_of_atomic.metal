// run: {"threadgroup": 64}
#include <metal_stdlib>
using namespace metal;
kernel void faulty(device atomic_uint* c [[buffer(0)]], device float* y [[buffer(1)]],
                   uint tid [[thread_position_in_threadgroup]]) {
  if (tid == 0) atomic_fetch_add_explicit(c, 1u, memory_order_relaxed);
  y[tid] = ((device uint*)c)[0];  // fault: race
}
kernel void fixed(device atomic_uint* c [[buffer(0)]], device float* y [[buffer(1)]],
                  uint tid [[thread_position_in_threadgroup]]) {
  if (tid == 0) atomic_fetch_add_explicit(c, 1u, memory_order_relaxed);
  y[tid] = atomic_load_explicit(c, memory_order_relaxed);
}
