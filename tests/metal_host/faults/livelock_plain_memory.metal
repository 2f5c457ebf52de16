// run: {"grid": 2, "threadgroup": 32}
#include <metal_stdlib>
using namespace metal;
kernel void faulty(coherent(device) device uint* d [[buffer(0)]]) {
  while (d[0] == 0) {  // fault: livelock
  }
}
kernel void fixed(coherent(device) device uint* d [[buffer(0)]]) {
  for (uint i = 0; i < 1000 && d[0] == 0; ++i) {
  }
}
