// run: {"threadgroup": 32, "seeds": 8, "options": {"schedule": "random"}, "plain": true}
#include <metal_stdlib>
using namespace metal;
// A lock that every lane takes: the holder needs the lanes that poll.
kernel void faulty(device atomic_uint* c [[buffer(0)]], coherent(device) device uint* d [[buffer(1)]]) {
  for (;;) {
    uint expected = 0;
    if (atomic_compare_exchange_weak_explicit(c, &expected, 1u, memory_order_relaxed,  // fault: simdgroup-spin
                                              memory_order_relaxed))
      break;
  }
  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
  d[0] += 1;
  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
  atomic_store_explicit(c, 0u, memory_order_relaxed);
}
kernel void fixed(device atomic_uint* c [[buffer(0)]], coherent(device) device uint* d [[buffer(1)]],
                  uint lane [[thread_index_in_simdgroup]]) {
  if (lane != 0) return;
  for (;;) {
    uint expected = 0;
    if (atomic_compare_exchange_weak_explicit(c, &expected, 1u, memory_order_relaxed,
                                              memory_order_relaxed))
      break;
  }
  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
  d[0] += 1;
  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
  atomic_store_explicit(c, 0u, memory_order_relaxed);
}
