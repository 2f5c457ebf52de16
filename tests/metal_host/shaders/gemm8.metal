// Y = X W^T for few rows: X [8][K], W [N][K] in bfloat, Y [8][N] in float.
// gemm8: a simdgroup makes 8 rows x 8 TILES columns.  matvec: one row, a simdgroup an output.
#include <metal_simdgroup_matrix>
#include <metal_stdlib>
#pragma METAL fp contract(off)
using namespace metal;

struct GemmArgs {
  uint N, K;
};

template <int TILES>
kernel void gemm8(device const bfloat* X [[buffer(0)]], device const bfloat* W [[buffer(1)]],
                  device float* Y [[buffer(2)]], constant GemmArgs& a [[buffer(3)]],
                  uint group [[threadgroup_position_in_grid]],
                  uint simdgroup [[simdgroup_index_in_threadgroup]],
                  uint simdgroups [[simdgroups_per_threadgroup]]) {
  const uint n0 = (group * simdgroups + simdgroup) * 8 * TILES;
  simdgroup_bfloat8x8 x, w;
  simdgroup_float8x8 sum[TILES];
  for (int j = 0; j < TILES; ++j) sum[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (uint k = 0; k < a.K; k += 8) {
    simdgroup_load(x, X + k, a.K);
    for (int j = 0; j < TILES; ++j) {
      simdgroup_load(w, W + (n0 + 8 * j) * a.K + k, a.K, ulong2(0, 0), true);
      simdgroup_multiply_accumulate(sum[j], x, w, sum[j]);
    }
  }
  for (int j = 0; j < TILES; ++j) simdgroup_store(sum[j], Y + n0 + 8 * j, a.N);
}
template [[host_name("gemm8_1")]] [[kernel]] decltype(gemm8<1>) gemm8<1>;
template [[host_name("gemm8_4")]] [[kernel]] decltype(gemm8<4>) gemm8<4>;

kernel void matvec(device const bfloat4* x [[buffer(0)]], device const bfloat4* W [[buffer(1)]],
                   device float* y [[buffer(2)]], constant GemmArgs& a [[buffer(3)]],
                   uint group [[threadgroup_position_in_grid]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]],
                   uint simdgroups [[simdgroups_per_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]]) {
  const uint n = group * simdgroups + simdgroup;
  device const bfloat4* w = W + n * (a.K / 4);
  float sum = 0;
  for (uint i = lane; i < a.K / 4; i += 32) sum += dot(float4(w[i]), float4(x[i]));
  sum = simd_sum(sum);
  if (lane == 0) y[n] = sum;
}
