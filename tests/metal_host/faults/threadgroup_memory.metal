// run: {"threadgroup": 64}
#include <metal_stdlib>
using namespace metal;
kernel void faulty(device float* x [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  threadgroup float a[4096];
  threadgroup float b[4200];  // fault: threadgroup-memory
  a[tid] = b[tid] = x[tid];
  x[tid] = a[tid] + b[tid];
}
kernel void fixed(device float* x [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  threadgroup float a[4096];
  threadgroup float b[4096];
  a[tid] = b[tid] = x[tid];
  x[tid] = a[tid] + b[tid];
}
