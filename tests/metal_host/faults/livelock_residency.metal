// run: {"grid": 4, "threadgroup": 32, "plain": true, "options": {"residency": 2}}
#include <metal_stdlib>
using namespace metal;
// Two threadgroups in flight: the first two wait for the last.
kernel void faulty(device atomic_uint* c [[buffer(0)]], uint group [[threadgroup_position_in_grid]]) {
  if (group == 3) atomic_store_explicit(c, 1u, memory_order_relaxed);
  while (atomic_load_explicit(c, memory_order_relaxed) == 0) {  // fault: livelock
  }
}
kernel void fixed(device atomic_uint* c [[buffer(0)]], uint group [[threadgroup_position_in_grid]]) {
  if (group == 0) atomic_store_explicit(c, 1u, memory_order_relaxed);
  while (atomic_load_explicit(c, memory_order_relaxed) == 0) {
  }
}
