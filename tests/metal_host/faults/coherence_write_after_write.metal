// run: {"grid": 2, "threadgroup": 32}
#include <metal_stdlib>
using namespace metal;
// Which of two ordered writes is kept is open, unless both are coherent.
#define FENCE atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device)
#define BODY                                                             \
  if (lane) return;                                                      \
  while (atomic_load_explicit(c, memory_order_relaxed) != group) {       \
  }                                                                      \
  FENCE;                                                                 \
  data[0] = group;                                                       \
  FENCE;                                                                 \
  atomic_store_explicit(c, group + 1, memory_order_relaxed);
kernel void faulty(device float* data [[buffer(0)]], device atomic_uint* c [[buffer(1)]],
                   uint group [[threadgroup_position_in_grid]],
                   uint lane [[thread_index_in_simdgroup]]) {
  BODY  // fault: coherence
}
kernel void fixed(coherent(device) device float* data [[buffer(0)]],
                  device atomic_uint* c [[buffer(1)]],
                  uint group [[threadgroup_position_in_grid]],
                  uint lane [[thread_index_in_simdgroup]]) {
  BODY
}
