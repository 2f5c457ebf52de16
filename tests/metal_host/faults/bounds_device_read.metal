// run: {"threadgroup": 256, "length": 256}
#include <metal_stdlib>
using namespace metal;
kernel void faulty(device float* x [[buffer(0)]], device float* y [[buffer(1)]],
                   uint tid [[thread_position_in_threadgroup]]) {
  y[tid] = x[tid + 1];  // fault: bounds
}
kernel void fixed(device float* x [[buffer(0)]], device float* y [[buffer(1)]],
                  uint tid [[thread_position_in_threadgroup]]) {
  y[tid] = x[(tid + 1) % 256];
}
