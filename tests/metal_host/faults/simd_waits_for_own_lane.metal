// run: {"threadgroup": 32, "plain": true}
#include <metal_stdlib>
using namespace metal;
kernel void faulty(device atomic_uint* c [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
  if (lane == 0) {
    while (atomic_load_explicit(c, memory_order_relaxed) == 0) {  // fault: simdgroup-spin
    }
  } else if (lane == 1) {
    atomic_store_explicit(c, 1u, memory_order_relaxed);
  }
}
kernel void fixed(device atomic_uint* c [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
  if (lane == 1) atomic_store_explicit(c, 1u, memory_order_relaxed);
  while (atomic_load_explicit(c, memory_order_relaxed) == 0) {
  }
}
