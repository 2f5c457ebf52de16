// Y = round(X * rsqrt(mean(X^2) + eps) * (1 + w)), the same bits as kNorm of the projection.
//   X [R][x_stride], Y [R][y_stride], rows on 16 bytes; norm_weight [K]
// Launch: THREADS threads a row; grid (R). Threadgroup memory: 32 bytes.
// Who: a row belongs to one threadgroup.
#include "include/abi.h"
#include "include/kernel.h"
#include "include/overlap.h"
#include "include/rows.h"

template <typename T>
inline void put_normed(device uint4* y, Eight<T> x, Eight<T> w, float inv) {
  const Eight<T> v = eight_normed<T>(x, w, inv);
#pragma unroll
  for (uint j = 0; j < sizeof(T) / 2; ++j) y[j] = v.w[j];
}

template <typename T, int THREADS>
[[kernel, max_total_threads_per_threadgroup(THREADS)]] void rms_norm(
    device const uint4* X [[buffer(0)]], device const uint4* norm_weight [[buffer(1)]],
    device uint4* Y [[buffer(2)]], constant ProjectionArgs& args [[buffer(3)]],
    uint row [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float squares[SEGMENTS];
  next_may_start();
  inputs_ready();
  constexpr uint WORDS = sizeof(T) / 2;
  device const uint4* x = X + ulong(row) * (args.x_stride / 8 * WORDS);
  device uint4* y = Y + ulong(row) * (args.y_stride / 8 * WORDS);
  // What this thread normalises first is asked for together with what the sum needs.
  constexpr uint EARLY = 3;
  const uint words = args.k / 8;
  Eight<T> own[EARLY], weight[EARLY];
#pragma unroll
  for (uint e = 0; e < EARLY; ++e) {
    const uint w = min(tid + e * THREADS, words - 1);
    own[e] = eight_load<T>(x + w * WORDS);
    weight[e] = eight_load<T>(norm_weight + w * WORDS);
  }
  for (uint s = sg; s < SEGMENTS; s += THREADS / 32) {
    const float sum = segment_squares<T, 20>(x + lane_pair(lane) * WORDS, args.k / 32, s);
    if (lane == 0) squares[s] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const float inv = row_scale(squares, 1, args.k, args.eps);
#pragma unroll
  for (uint e = 0; e < EARLY; ++e)
    if (tid + e * THREADS < words)
      put_normed(y + (tid + e * THREADS) * WORDS, own[e], weight[e], inv);
  for (uint w = tid + EARLY * THREADS; w < words; w += THREADS)
    put_normed(y + w * WORDS, eight_load<T>(x + w * WORDS), eight_load<T>(norm_weight + w * WORDS),
               inv);
}

TMF_KERNELS("rms_norm", "n256__group", rms_norm, 256)
