// A packed weight tile: 16 outputs x 16 k, eight values a lane, in the order in which the device's
// matrix unit takes its operand (torch_mps_fusion/packing.py writes it). A tile is one load of 512
// contiguous bytes a SIMD group (two for float) and needs no shuffle. All that differs between
// devices is in this file.
//   lane_row, lane_pair    the activation row of a lane, and which k pair of each 8-wide fragment
//   pairs_sum              sum over the four lanes of a row, (0+1)+(2+3) by pair
//   Acc<T>                 16 outputs x 8 rows in float, four values a lane
//   tile_mma(acc, w, x, h) acc += tile * activations; x: eight k of 32, of which tile h takes half
//   weight_load(p)         16 bytes of a weight, which a call reads once: not to be kept in caches
//   acc_value, acc_n, acc_row   the i-th of the lane's four values, and whose they are
#pragma once
#include "math.h"

// Eight values of one lane, in words of 16 bytes.
template <typename T>
struct Eight {
  uint4 w[sizeof(T) / 2];
};
template <typename T>
inline vec<T, 2> eight_pair(thread const Eight<T>& v, int i) {
  return as_type<vec<T, 2>>(v.w[0][i]);
}
template <>
inline float2 eight_pair<float>(thread const Eight<float>& v, int i) {
  const uint4 w = v.w[i >> 1];
  return as_type<float2>((i & 1) ? w.zw : w.xy);
}
inline void eight_put(thread Eight<half>& v, int i, half2 p) { v.w[0][i] = as_type<uint>(p); }
inline void eight_put(thread Eight<bfloat>& v, int i, bfloat2 p) { v.w[0][i] = as_type<uint>(p); }
inline void eight_put(thread Eight<float>& v, int i, float2 p) {
  const uint2 bits = as_type<uint2>(p);
  v.w[i >> 1][2 * (i & 1)] = bits.x;
  v.w[i >> 1][2 * (i & 1) + 1] = bits.y;
}

#ifndef MSL_GPU
// Apple: D[row][n] += X[row][k] * W[k][n] in 8x8 fragments, two adjacent columns a lane.
template <typename T>
struct Acc {
  simdgroup_float8x8 c[2];
};
inline uint lane_row(uint lane) { return ((lane >> 2) & 4) + ((lane >> 1) & 3); }
inline uint lane_pair(uint lane) { return ((lane >> 2) & 2) + (lane & 1); }
inline float pairs_sum(float v) {
  v += simd_shuffle_xor(v, ushort(1));
  return v + simd_shuffle_xor(v, ushort(8));
}
inline uint4 weight_load(device const uint4* p) { return *p; }
template <typename T>
inline void acc_zero(thread Acc<T>& a, uint) {
  a.c[0] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  a.c[1] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
}
template <typename T>
inline simdgroup_matrix<T, 8, 8> fragment(vec<T, 2> pair) {
  simdgroup_matrix<T, 8, 8> f;
  f.thread_elements()[0] = pair.x;
  f.thread_elements()[1] = pair.y;
  return f;
}
// Operands are named: the library may take them by reference.
template <typename T>
inline void tile_mma(thread Acc<T>& a, thread const Eight<T>& w, thread const Eight<T>& x, int h) {
#pragma unroll
  for (int f = 0; f < 2; ++f) {
    simdgroup_matrix<T, 8, 8> left = fragment<T>(eight_pair<T>(x, 2 * h + f));
    simdgroup_matrix<T, 8, 8> low = fragment<T>(eight_pair<T>(w, 2 * f));
    simdgroup_matrix<T, 8, 8> high = fragment<T>(eight_pair<T>(w, 2 * f + 1));
    simdgroup_multiply_accumulate(a.c[0], left, low, a.c[0]);
    simdgroup_multiply_accumulate(a.c[1], left, high, a.c[1]);
  }
}
template <typename T>
inline float acc_value(thread Acc<T>& a, int i) {
  return a.c[i >> 1].thread_elements()[i & 1];
}
inline uint acc_n(uint lane, int i) { return (i >> 1) * 8 + 2 * lane_pair(lane) + (i & 1); }
inline uint acc_row(uint lane, int) { return lane_row(lane); }
#else
// NVIDIA: D[n][row] += W[n][k] * X[row][k], one mma.m16n8k16 a tile with the weights on the left.
template <typename T>
struct Acc {
  float c[4];
  uint lane;
};
inline uint lane_row(uint lane) { return lane >> 2; }
inline uint lane_pair(uint lane) { return lane & 3; }
inline float pairs_sum(float v) {
  v += simd_shuffle_xor(v, ushort(1));
  return v + simd_shuffle_xor(v, ushort(2));
}
inline uint4 weight_load(device const uint4* p) {
  ulong once;
  uint4 v;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
  asm("ld.global.L1::no_allocate.L2::cache_hint.v4.b32 {%0,%1,%2,%3}, [%4], %5;"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(p), "l"(once));
  return v;
}
template <typename T>
inline void acc_zero(thread Acc<T>& a, uint lane) {
  for (int i = 0; i < 4; ++i) a.c[i] = 0.0f;
  a.lane = lane;
}
#define TMF_MMA(type)                                                                   \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                            \
      ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                      \
      : "+f"(a.c[0]), "+f"(a.c[1]), "+f"(a.c[2]), "+f"(a.c[3])                          \
      : "r"(w.w[0].x), "r"(w.w[0].y), "r"(w.w[0].z), "r"(w.w[0].w), "r"(x.w[0][2 * h]), \
        "r"(x.w[0][2 * h + 1]))
inline void tile_mma(thread Acc<bfloat>& a, thread const Eight<bfloat>& w,
                     thread const Eight<bfloat>& x, int h) {
  TMF_MMA("bf16");
}
inline void tile_mma(thread Acc<half>& a, thread const Eight<half>& w, thread const Eight<half>& x,
                     int h) {
  TMF_MMA("f16");
}
// No float matrix unit: the four lanes of a quad hand round their k pairs.
inline void tile_mma(thread Acc<float>& a, thread const Eight<float>& w,
                     thread const Eight<float>& x, int h) {
#pragma unroll
  for (int f = 0; f < 2; ++f)
#pragma unroll
    for (uint j = 0; j < 4; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 wp = simd_shuffle(eight_pair<float>(w, 2 * f + (i >> 1)), (a.lane & 28) + j);
        const float2 xp =
            simd_shuffle(eight_pair<float>(x, 2 * h + f), 4 * (2 * (a.lane & 3) + (i & 1)) + j);
        a.c[i] = fma(wp.y, xp.y, fma(wp.x, xp.x, a.c[i]));
      }
}
template <typename T>
inline float acc_value(thread Acc<T>& a, int i) {
  return a.c[i];
}
inline uint acc_n(uint lane, int i) { return (i >> 1) * 8 + lane_row(lane); }
inline uint acc_row(uint lane, int i) { return 2 * lane_pair(lane) + (i & 1); }
#endif
