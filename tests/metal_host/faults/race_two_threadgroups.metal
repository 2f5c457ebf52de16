// run: {"grid": 2, "threadgroup": 64}
#include <metal_stdlib>
using namespace metal;
kernel void faulty(device float* x [[buffer(0)]], device float* y [[buffer(1)]],
                   uint tid [[thread_position_in_threadgroup]]) {
  y[tid] = x[tid];  // fault: race
}
kernel void fixed(device float* x [[buffer(0)]], device float* y [[buffer(1)]],
                  uint i [[thread_position_in_grid]]) {
  y[i] = x[i];
}
