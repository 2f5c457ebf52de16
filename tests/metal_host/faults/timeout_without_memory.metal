// run: {"threadgroup": 32, "plain": true, "options": {"time_limit": 0.3}}
#include <metal_stdlib>
using namespace metal;
kernel void faulty(device uint* d [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  uint h = d[tid];
  while (h != 1) h = (h | 2) * 8;  // fault: timeout
  d[tid] = h;
}
kernel void fixed(device uint* d [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  uint h = d[tid];
  for (uint i = 0; i < 100 && h != 1; ++i) h = (h | 2) * 8;
  d[tid] = h;
}
