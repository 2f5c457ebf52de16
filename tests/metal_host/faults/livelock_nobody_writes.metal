// run: {"threadgroup": 64, "plain": true}
#include <metal_stdlib>
using namespace metal;
kernel void faulty(device atomic_uint* c [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  while (atomic_load_explicit(c, memory_order_relaxed) == 0) {  // fault: livelock
  }
}
kernel void fixed(device atomic_uint* c [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  for (uint i = 0; i < 100 && atomic_load_explicit(c, memory_order_relaxed) == 0; ++i) {
  }
}
