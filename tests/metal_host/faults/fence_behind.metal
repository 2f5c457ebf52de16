// run: {"grid": 2, "threadgroup": 32}
#include <metal_stdlib>
using namespace metal;
// The reader needs a fence as well as the writer.
#define FENCE atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device)
static void publish(device atomic_uint* c, coherent(device) device float* data, float v) {
  data[0] = v;
  FENCE;
  atomic_fetch_or_explicit(c, 1u, memory_order_relaxed);
}
static void await(device atomic_uint* c) {
  while ((atomic_load_explicit(c, memory_order_relaxed) & 1) == 0) {
  }
}
kernel void faulty(coherent(device) device float* data [[buffer(0)]],
                   device atomic_uint* c [[buffer(1)]], device float* y [[buffer(2)]],
                   uint group [[threadgroup_position_in_grid]],
                   uint lane [[thread_index_in_simdgroup]]) {
  if (lane) return;
  if (group == 0) {
    publish(c, data, 3);
  } else {
    await(c);
    y[0] = data[0];  // fault: race
  }
}
kernel void fixed(coherent(device) device float* data [[buffer(0)]],
                  device atomic_uint* c [[buffer(1)]], device float* y [[buffer(2)]],
                  uint group [[threadgroup_position_in_grid]],
                  uint lane [[thread_index_in_simdgroup]]) {
  if (lane) return;
  if (group == 0) {
    publish(c, data, 3);
  } else {
    await(c);
    FENCE;
    y[0] = data[0];
  }
}
