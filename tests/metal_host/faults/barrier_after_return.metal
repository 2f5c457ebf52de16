// run: {"threadgroup": 64}
#include <metal_stdlib>
using namespace metal;
kernel void faulty(device float* x [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  if (tid == 3) return;
  threadgroup_barrier(mem_flags::mem_device);  // fault: barrier-divergence
  x[tid] = 1;
}
kernel void fixed(device float* x [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  threadgroup_barrier(mem_flags::mem_device);
  if (tid == 3) return;
  x[tid] = 1;
}
