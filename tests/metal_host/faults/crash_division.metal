// run: {"threadgroup": 32, "plain": true}
#include <metal_stdlib>
using namespace metal;
kernel void faulty(device uint* d [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  d[tid] = 7 / d[tid + 32];  // fault: crash
}
kernel void fixed(device uint* d [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  d[tid] = 7 / max(d[tid + 32], 1u);
}
