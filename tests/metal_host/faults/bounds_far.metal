// run: {"threadgroup": 32}
#include <metal_stdlib>
using namespace metal;
kernel void faulty(device float* y [[buffer(1)]], uint tid [[thread_position_in_threadgroup]]) {
  y[tid + 0x40000000ul] = 1;  // fault: bounds
}
kernel void fixed(device float* y [[buffer(1)]], uint tid [[thread_position_in_threadgroup]]) {
  y[tid] = 1;
}
