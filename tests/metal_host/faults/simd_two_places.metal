// run: {"threadgroup": 64}
#include <metal_stdlib>
using namespace metal;
kernel void faulty(device float* x [[buffer(0)]], uint tid [[thread_position_in_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]]) {
  float v = x[tid];
  if (lane < 7)
    v = simd_sum(v);
  else
    v = simd_max(v);  // fault: simdgroup-divergence
  x[tid] = v;
}
kernel void fixed(device float* x [[buffer(0)]], uint tid [[thread_position_in_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]]) {
  float v = x[tid], sum = simd_sum(v), largest = simd_max(v);
  x[tid] = lane < 7 ? sum : largest;
}
