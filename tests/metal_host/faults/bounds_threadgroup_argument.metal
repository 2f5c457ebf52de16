// run: {"threadgroup": 64, "threadgroup_memory": [128]}
#include <metal_stdlib>
using namespace metal;
kernel void faulty(device float* x [[buffer(0)]], threadgroup float* tile [[threadgroup(0)]],
                   uint tid [[thread_position_in_threadgroup]]) {
  tile[tid] = x[tid];  // fault: bounds
}
kernel void fixed(device float* x [[buffer(0)]], threadgroup float* tile [[threadgroup(0)]],
                  uint tid [[thread_position_in_threadgroup]]) {
  if (tid < 32) tile[tid] = x[tid];
}
