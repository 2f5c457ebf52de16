// y[r][n] = sum over k of x[r][k] * w[n][k]: K in kSplits slices, summed in order.
//   x [rows, k] and w [n, k] bfloat; y [rows, n] bfloat, sums [rows, n] float before rounding;
//   rows <= 8, k % kSplits == 0
//   grid: (n); threadgroup: 32 * kSplits, a SIMD group a slice.
// A probe of how a slice count moves bits and time; not one of the layer's projections.
#include <metal_stdlib>
using namespace metal;

constant uint kSplits [[function_constant(0)]];

constant constexpr uint kMostRows = 8;
constant constexpr uint kMostSplits = 32;

struct KsplitArgs {
  uint rows, k, n, x_stride;
};

kernel void ksplit(device const bfloat* x [[buffer(0)]], device const bfloat* w [[buffer(1)]],
                   device bfloat* y [[buffer(2)]], device float* sums [[buffer(3)]],
                   constant KsplitArgs& args [[buffer(4)]], uint n [[threadgroup_position_in_grid]],
                   uint slice [[simdgroup_index_in_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float part[kMostSplits][kMostRows];
  float acc[kMostRows] = {0};
  const uint each = args.k / kSplits;
  for (uint k = slice * each + lane; k < (slice + 1) * each; k += 32) {
    const float weight = float(w[n * args.k + k]);
    for (uint r = 0; r < args.rows; ++r) {
      acc[r] = fma(float(x[r * args.x_stride + k]), weight, acc[r]);
    }
  }
  for (uint r = 0; r < args.rows; ++r) {
    const float sum = simd_sum(acc[r]);
    if (lane == 0) part[slice][r] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (slice == 0 && lane < args.rows) {
    float sum = part[0][lane];
    for (uint s = 1; s < kSplits; ++s) sum += part[s][lane];
    sums[lane * args.n + n] = sum;
    y[lane * args.n + n] = bfloat(sum);
  }
}
