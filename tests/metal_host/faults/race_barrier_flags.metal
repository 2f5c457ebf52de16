// run: {"threadgroup": 64}
#include <metal_stdlib>
using namespace metal;
// A barrier orders only the memory that its flags name.
kernel void faulty(device float* x [[buffer(0)]], device float* y [[buffer(1)]],
                   uint tid [[thread_position_in_threadgroup]]) {
  y[tid] = x[tid];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  x[tid] = y[63 - tid];  // fault: race
}
kernel void fixed(device float* x [[buffer(0)]], device float* y [[buffer(1)]],
                  uint tid [[thread_position_in_threadgroup]]) {
  y[tid] = x[tid];
  threadgroup_barrier(mem_flags::mem_device);
  x[tid] = y[63 - tid];
}
