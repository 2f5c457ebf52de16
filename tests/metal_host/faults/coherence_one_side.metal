// run: {"grid": 2, "threadgroup": 64}
#include <metal_stdlib>
using namespace metal;
// The reader takes a coherent pointer, the writer does not.
static void put(device float* p, uint i, float v) {
  p[i] = v;  // fault: coherence
}
static void put_coherent(coherent(device) device float* p, uint i, float v) {
  p[i] = v;
}
#define FENCE atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device)
#define BODY(PUT, TYPE)                                                        \
  if (group == 0) {                                                            \
    PUT((TYPE)data, tid, tid);                                                 \
    threadgroup_barrier(mem_flags::mem_device);                                \
    if (tid == 0) {                                                            \
      FENCE;                                                                   \
      atomic_store_explicit(c, 1u, memory_order_relaxed);                      \
    }                                                                          \
  } else {                                                                     \
    while (tid == 0 && atomic_load_explicit(c, memory_order_relaxed) == 0) {   \
    }                                                                          \
    FENCE;                                                                     \
    threadgroup_barrier(mem_flags::mem_device);                                \
    y[tid] = ((coherent(device) device float*)data)[63 - tid];                 \
  }
kernel void faulty(device float* data [[buffer(0)]], device atomic_uint* c [[buffer(1)]],
                   device float* y [[buffer(2)]], uint group [[threadgroup_position_in_grid]],
                   uint tid [[thread_position_in_threadgroup]]) {
  BODY(put, device float*)
}
kernel void fixed(device float* data [[buffer(0)]], device atomic_uint* c [[buffer(1)]],
                  device float* y [[buffer(2)]], uint group [[threadgroup_position_in_grid]],
                  uint tid [[thread_position_in_threadgroup]]) {
  BODY(put_coherent, coherent(device) device float*)
}
