// run: {"threadgroup": 32, "plain": true, "unchecked_only": true}
#include <metal_stdlib>
using namespace metal;
kernel void faulty(device uint* d [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  d[tid + 0x4000000000000ul] = 7;  // fault: crash
}
kernel void fixed(device uint* d [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  d[tid] = 7;
}
