// run: {"grid": 2, "threadgroup": 64}
#include <metal_stdlib>
using namespace metal;
// Without a fence before it, a relaxed store publishes nothing.
kernel void faulty(coherent(device) device float* data [[buffer(0)]], device atomic_uint* c [[buffer(1)]],
                  device float* y [[buffer(2)]], uint group [[threadgroup_position_in_grid]],
                  uint tid [[thread_position_in_threadgroup]]) {
  if (group == 0) {
    data[tid] = tid + 1;
    threadgroup_barrier(mem_flags::mem_device);
    if (tid == 0) {
      
      atomic_store_explicit(c, 1u, memory_order_relaxed);
    }
  } else {
    if (tid == 0) {
      while (atomic_load_explicit(c, memory_order_relaxed) == 0) {
      }
      atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
    }
    threadgroup_barrier(mem_flags::mem_device);
    y[tid] = data[63 - tid];  // fault: race
  }
}
kernel void fixed(coherent(device) device float* data [[buffer(0)]], device atomic_uint* c [[buffer(1)]],
                  device float* y [[buffer(2)]], uint group [[threadgroup_position_in_grid]],
                  uint tid [[thread_position_in_threadgroup]]) {
  if (group == 0) {
    data[tid] = tid + 1;
    threadgroup_barrier(mem_flags::mem_device);
    if (tid == 0) {
      atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
      atomic_store_explicit(c, 1u, memory_order_relaxed);
    }
  } else {
    if (tid == 0) {
      while (atomic_load_explicit(c, memory_order_relaxed) == 0) {
      }
      atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
    }
    threadgroup_barrier(mem_flags::mem_device);
    y[tid] = data[63 - tid];
  }
}
