// run: {"threadgroup": 64}
#include <metal_stdlib>
using namespace metal;
kernel void faulty(device float* x [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  float v = x[tid];
  if (tid < 4) v = simd_sum(v);  // fault: simdgroup-divergence
  threadgroup_barrier(mem_flags::mem_device);
  x[tid] = v;
}
kernel void fixed(device float* x [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  float v = x[tid], sum = simd_sum(v);
  threadgroup_barrier(mem_flags::mem_device);
  x[tid] = tid < 4 ? sum : v;
}
