// round(round(w * round(o * rsqrt(mean(o^2) + eps))) * silu(z)) of one head of one token, by one
// SIMD group with N adjacent values a lane. out: the lane's first value.
#pragma once
#include "math.h"

template <typename T, int N, typename PO>
inline void gated_norm(thread const float (&o)[N], thread const float (&z)[N],
                       thread const float (&w)[N], float eps, PO out) {
  const float inv = rsqrt(group_dot(o, o) / float(32 * N) + eps);
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = T(rounded<T>(w[i] * rounded<T>(o[i] * inv)) * silu(z[i]));
}

// What a masked token gives instead: the mixer adds zero.
template <typename T, int N, typename PO>
inline void gated_norm_masked(PO out) {
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = T(0.0f);
}
