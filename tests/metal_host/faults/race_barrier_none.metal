// run: {"threadgroup": 64}
#include <metal_stdlib>
using namespace metal;
kernel void faulty(device float* x [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[tid] = x[tid];
  threadgroup_barrier(mem_flags::mem_none);
  x[tid] = tile[63 - tid];  // fault: race
}
kernel void fixed(device float* x [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[tid] = x[tid];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  x[tid] = tile[63 - tid];
}
