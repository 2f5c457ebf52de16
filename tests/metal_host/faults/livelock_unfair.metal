// run: {"grid": 2, "threadgroup": 32, "plain": true, "seeds": 32, "options": {"schedule": "unfair"}}
#include <metal_stdlib>
using namespace metal;
// The second threadgroup waits for the first, which has started and is starved.
kernel void faulty(device atomic_uint* c [[buffer(0)]], device atomic_uint* d [[buffer(1)]],
                   uint tid [[thread_position_in_threadgroup]]) {
  if (tid != 0) return;
  uint ticket = atomic_fetch_add_explicit(c, 1u, memory_order_relaxed);
  if (ticket == 0) {
    atomic_fetch_add_explicit(c, 8u, memory_order_relaxed);
    atomic_store_explicit(d, 1u, memory_order_relaxed);
  } else {
    while (atomic_load_explicit(d, memory_order_relaxed) == 0) {  // fault: livelock
    }
  }
}
kernel void fixed(device atomic_uint* c [[buffer(0)]], device atomic_uint* d [[buffer(1)]],
                  uint tid [[thread_position_in_threadgroup]]) {
  if (tid != 0) return;
  uint ticket = atomic_fetch_add_explicit(c, 1u, memory_order_relaxed);
  if (ticket == 0) {
    atomic_fetch_add_explicit(c, 8u, memory_order_relaxed);
    atomic_store_explicit(d, 1u, memory_order_relaxed);
  } else {
    for (uint i = 0; i < 1000 && atomic_load_explicit(d, memory_order_relaxed) == 0; ++i) {
    }
  }
}
