// run: {"threadgroup": 256, "length": 256}
#include <metal_stdlib>
using namespace metal;
kernel void faulty(device float4* y [[buffer(1)]], uint tid [[thread_position_in_threadgroup]]) {
  y[tid] = float4(1);  // fault: bounds
}
kernel void fixed(device float4* y [[buffer(1)]], uint tid [[thread_position_in_threadgroup]]) {
  if (tid < 64) y[tid] = float4(1);
}
