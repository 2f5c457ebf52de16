// run: {"threadgroup": 32}
#include <metal_stdlib>
using namespace metal;
kernel void faulty(device float* y [[buffer(1)]], uint tid [[thread_position_in_threadgroup]]) {
  y[int(tid) - 1] = 1;  // fault: bounds
}
kernel void fixed(device float* y [[buffer(1)]], uint tid [[thread_position_in_threadgroup]]) {
  y[max(int(tid) - 1, 1) + int(tid)] = 1;
}
