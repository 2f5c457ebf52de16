// run: {"threadgroup": 48}
#include <metal_stdlib>
using namespace metal;
kernel void faulty(device float* x [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  float v = x[tid];
  x[tid] = simd_shuffle_xor(v, 16);  // fault: inactive-lanes
}
kernel void fixed(device float* x [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  float v = x[tid];
  x[tid] = simd_shuffle_xor(v, 8);
}
