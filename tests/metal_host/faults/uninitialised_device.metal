// run: {"threadgroup": 64, "poison": ["y"]}
#include <metal_stdlib>
using namespace metal;
kernel void faulty(device float* x [[buffer(0)]], device float* y [[buffer(1)]],
                   uint tid [[thread_position_in_threadgroup]]) {
  y[tid] += x[tid];  // fault: uninitialised
}
kernel void fixed(device float* x [[buffer(0)]], device float* y [[buffer(1)]],
                  uint tid [[thread_position_in_threadgroup]]) {
  y[tid] = x[tid];
}
