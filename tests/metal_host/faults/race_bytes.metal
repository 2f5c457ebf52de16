// run: {"threadgroup": 64}
#include <metal_stdlib>
using namespace metal;
// Neighbouring bytes are different places.
kernel void faulty(device uchar* b [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  b[tid / 2] = tid;  // fault: race
}
kernel void fixed(device uchar* b [[buffer(0)]], uint tid [[thread_position_in_threadgroup]]) {
  b[tid] = tid;
}
