// run: {"threadgroup": 64}
#include <metal_stdlib>
using namespace metal;
kernel void faulty(device float* x [[buffer(0)]], device float* y [[buffer(1)]],
                   uint tid [[thread_position_in_threadgroup]]) {
  threadgroup float tile[64];
  for (int i = 0; i < 3; ++i) {
    tile[tid] = x[tid] + i;  // fault: race
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[tid] += tile[63 - tid];
  }
}
kernel void fixed(device float* x [[buffer(0)]], device float* y [[buffer(1)]],
                  uint tid [[thread_position_in_threadgroup]]) {
  threadgroup float tile[64];
  for (int i = 0; i < 3; ++i) {
    tile[tid] = x[tid] + i;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[tid] += tile[63 - tid];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}
