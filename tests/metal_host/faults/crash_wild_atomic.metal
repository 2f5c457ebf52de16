// run: {"threadgroup": 32, "plain": true, "unchecked_only": true}
#include <metal_stdlib>
using namespace metal;
kernel void faulty(device atomic_uint* c [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  atomic_fetch_add_explicit(c + 0x4000000000000ul, 1u, memory_order_relaxed);  // fault: crash
}
kernel void fixed(device atomic_uint* c [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  atomic_fetch_add_explicit(c, 1u, memory_order_relaxed);
}
