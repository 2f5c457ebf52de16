// Y = X W^T from packed tiles. X: [8][K] bfloat; W: [N / 16][K / 16][32 lanes][4 words], each word
// two bfloats in the device's operand order; Y: [8][N] float. A simdgroup makes 16 outputs.

// metal_host: msl 3.1
#include <metal_simdgroup_matrix>
#include <metal_stdlib>
#pragma METAL fp contract(off)
using namespace metal;
#include "native_tile.h"

struct TileArgs {
  uint N, K;
};

[[kernel, max_total_threads_per_threadgroup(64)]] void native_tile(
    device const uint* X [[buffer(0)]], device const uint4* W [[buffer(1)]],
    device float* Y [[buffer(2)]], constant TileArgs& a [[buffer(3)]],
    uint group [[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  const uint block = group * simdgroups + simdgroup, tiles = a.K / 16;
  device const uint* x = X + tile_row(lane) * (a.K / 2) + tile_pair(lane);
  device const uint4* w = W + block * tiles * 32 + lane;
  TileSum sum;
  tile_zero(sum);
  for (uint k = 0; k < tiles; ++k) tile_multiply(sum, w[k * 32], uint2(x[k * 8], x[k * 8 + 4]));
  for (uint i = 0; i < 4; ++i)
    Y[tile_value_row(lane, i) * a.N + block * 16 + tile_output(lane, i)] = tile_value(sum, i);
}
