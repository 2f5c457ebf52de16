// round(round(w * round(o * rsqrt(mean(o^2) + eps))) * silu(z)) of one head of one token, by one
// SIMD group with N adjacent values a lane. out: the lane's first value.
#pragma once
#include "middle.h"

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

// G of head h of token t of sequence b from O, both [B*T][Hv][DV], and z in Y.
template <typename T, int DK, int DV, typename M>
inline void gated_norm_token(constant GdnArgs& args, uint h, uint b, uint t,
                             typename M::template in<T> O, typename M::template in<T> Y,
                             device const T* norm_weight, device const uchar* mask,
                             typename M::template out<T> G, uint lane) {
  constexpr int N = DV / 32;
  typedef typename M::template in<typename Run<T, N>::type> InRun;
  typedef device const typename Run<T, N>::type* Weight;
  const ulong row = ulong(b) * args.tokens + t, at = (row * args.v_heads + h) * DV;
  typename M::template out<T> out = G + at + lane * N;
  if (!live(args, mask, b, t)) {
    gated_norm_masked<T, N>(out);
    return;
  }
  float o[N], z[N], w[N];
  widen(o, ((InRun)(O + at))[lane]);
  widen(z, ((InRun)(Y + row * args.y_stride + columns_of<DK, DV>(args).z + h * DV))[lane]);
  widen(w, ((Weight)norm_weight)[lane]);
  gated_norm<T, N>(o, z, w, args.eps, out);
}
