// run: {"threadgroup": 64}
#include <metal_stdlib>
using namespace metal;
kernel void faulty(device float* x [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  if (tid >= 50) return;
  x[tid] = simd_sum(x[tid]);  // fault: inactive-lanes
}
kernel void fixed(device float* x [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  float sum = simd_sum(tid < 50 ? x[tid] : 0.0f);
  if (tid < 50) x[tid] = sum;
}
