// run: {"threadgroup": 64}
#include <metal_stdlib>
using namespace metal;
// One simdgroup hands data to another through threadgroup memory and a flag.
#define HAND_OVER(BEFORE, AFTER)                                              \
  threadgroup float data[32];                                                 \
  threadgroup atomic_uint flag;                                               \
  if (tid == 0) atomic_store_explicit(&flag, 0u, memory_order_relaxed);       \
  threadgroup_barrier(mem_flags::mem_threadgroup);                            \
  if (tid < 32) {                                                             \
    data[tid] = x[tid];                                                       \
    simdgroup_barrier(mem_flags::mem_threadgroup);                            \
    BEFORE;                                                                   \
    if (tid == 0) atomic_store_explicit(&flag, 1u, memory_order_relaxed);     \
  } else {                                                                    \
    while (atomic_load_explicit(&flag, memory_order_relaxed) == 0) {          \
    }                                                                         \
    AFTER;                                                                    \
    x[tid] = data[63 - tid];                                                  \
  }
#define FENCE(SCOPE) \
  atomic_thread_fence(mem_flags::mem_threadgroup, memory_order_seq_cst, thread_scope_##SCOPE)
kernel void faulty(device float* x [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  HAND_OVER(FENCE(simdgroup), FENCE(threadgroup))  // fault: race
}
kernel void fixed(device float* x [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  HAND_OVER(FENCE(threadgroup), FENCE(threadgroup))
}
