// out[g] = sum, maximum or minimum of the g-th block of x.  x: [groups][n]; out: [groups].
// A tree in threadgroup memory of one word a thread (threadgroup(0)); threads a power of two.
#include <metal_stdlib>
#pragma METAL fp contract(off)
using namespace metal;

struct Sum {
  static float of(float a, float b) { return a + b; }
  static float first() { return 0.0f; }
};
struct Max {
  static float of(float a, float b) { return max(a, b); }
  static float first() { return -INFINITY; }
};
struct Min {
  static float of(float a, float b) { return min(a, b); }
  static float first() { return INFINITY; }
};

template <typename Op>
kernel void reduce(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
                   constant uint& n [[buffer(2)]], threadgroup float* part [[threadgroup(0)]],
                   uint group [[threadgroup_position_in_grid]],
                   uint tid [[thread_position_in_threadgroup]],
                   uint threads [[threads_per_threadgroup]]) {
  float v = Op::first();
  for (uint i = tid; i < n; i += threads) v = Op::of(v, x[group * n + i]);
  part[tid] = v;
  for (uint half_way = threads / 2; half_way > 0; half_way /= 2) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid < half_way) part[tid] = Op::of(part[tid], part[tid + half_way]);
  }
  if (tid == 0) out[group] = part[0];
}
template [[host_name("reduce_sum")]] [[kernel]] decltype(reduce<Sum>) reduce<Sum>;
template [[host_name("reduce_max")]] [[kernel]] decltype(reduce<Max>) reduce<Max>;
template [[host_name("reduce_min")]] [[kernel]] decltype(reduce<Min>) reduce<Min>;
