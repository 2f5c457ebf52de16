// run: {"threadgroup": 32, "plain": true}
#include <metal_stdlib>
using namespace metal;
static uint deep(uint n, device uint* d) {
  volatile uint pad[64];
  pad[n & 63] = n;
  return n == 0 ? 0 : deep(n - 1, d) + pad[(n * 7) & 63] + d[n & 31];  // fault: crash
}
kernel void faulty(device uint* d [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  d[tid] = deep(10000000, d);
}
kernel void fixed(device uint* d [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  d[tid] = 1;
}
