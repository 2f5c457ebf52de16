// run: {"threadgroup": 32}
#include <metal_stdlib>
using namespace metal;
kernel void faulty(device float* x [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
  simdgroup_float8x8 a(1.0f), b(2.0f), c(0.0f);
  if (lane >= 16) return;
  simdgroup_multiply_accumulate(c, a, b, c);  // fault: inactive-lanes
  x[lane] = c.thread_elements()[0];
}
kernel void fixed(device float* x [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
  simdgroup_float8x8 a(1.0f), b(2.0f), c(0.0f);
  simdgroup_multiply_accumulate(c, a, b, c);
  if (lane < 16) x[lane] = c.thread_elements()[0];
}
