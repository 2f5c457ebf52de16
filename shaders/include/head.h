// What the tasks of a value head of a sequence share: its q, k and v from the convolution, its
// gates, unit q and k, into threadgroup memory, ready for the rule. The conv state is only read:
// heads that share a key head read the same one.
#pragma once
#include "conv.h"
#include "gates.h"
#include "rule.h"

template <typename T>
struct HeadBuffers {
  device const T* conv_weight;  // [conv_dim][K]
  device const T* conv_state;
  device const uchar* A_log;  // [Hv]
  device const uchar* dt_bias;
  device const T* norm_weight;  // [Dv]
  device const float* state_in;
  device float* state_out;
  device const uchar* mask;
};

// The channels of q, k and v that a thread convolves: c = tid, tid + THREADS, .. of 2 DK + COLUMNS.
// COLUMNS: of the value head, from `first` on.
template <int DK, int DV>
inline uint head_channel(constant GdnArgs& args, uint h, uint first, uint c) {
  const Columns at = columns_of<DK, DV>(args);
  const uint hk = key_head(args, h);
  return c < DK       ? hk * DK + c
         : c < 2 * DK ? at.k + hk * DK + (c - DK)
                      : at.v + h * DV + first + (c - 2 * DK);
}
template <int DK, int COLUMNS, uint THREADS>
struct HeadTaps {
  ConvTaps of[(2 * DK + COLUMNS + THREADS - 1) / THREADS];
};
template <typename T, int DK, int DV, int COLUMNS, uint THREADS, typename PY>
inline void head_taps(constant GdnArgs& args, thread const HeadBuffers<T>& in, PY Y, uint h,
                      uint first, uint b, uint t0, thread HeadTaps<DK, COLUMNS, THREADS>& taps,
                      uint tid) {
#pragma unroll
  for (uint i = 0; i * THREADS < 2 * DK + COLUMNS; ++i) {
    const uint c = tid + i * THREADS;
    if (c >= 2 * DK + COLUMNS) break;
    const uint channel = head_channel<DK, DV>(args, h, first, c);
    const ConvInput<T, PY> source = conv_input<T, PY>(args, Y, in.conv_state, in.mask, b, channel);
    taps.of[i] = conv_taps(args, source, in.conv_weight, channel, t0);
  }
}

// q, k and v of a block into mem.
template <typename T, int DK, int DV, int COLUMNS, uint THREADS, typename PY>
inline void head_conv(constant GdnArgs& args, thread const HeadBuffers<T>& in, PY Y, uint h,
                      uint first, uint b, uint t0, uint n,
                      thread const HeadTaps<DK, COLUMNS, THREADS>& taps,
                      threadgroup RuleMemory<DK, COLUMNS>& mem, uint tid) {
#pragma unroll
  for (uint i = 0; i * THREADS < 2 * DK + COLUMNS; ++i) {
    const uint c = tid + i * THREADS;
    if (c >= 2 * DK + COLUMNS) break;
    threadgroup float* to = c < DK       ? (threadgroup float*)mem.q[0] + c
                            : c < 2 * DK ? (threadgroup float*)mem.k[0] + (c - DK)
                                         : mem.v[0] + (c - 2 * DK);
    const ConvInput<T, PY> source = conv_input<T, PY>(args, Y, in.conv_state, in.mask, b,
                                                      head_channel<DK, DV>(args, h, first, c));
    conv_block<T, PY>(args, source, taps.of[i], t0, n, to, c < 2 * DK ? DK : COLUMNS);
  }
}

// The gates of a block of tokens, by the last threads, which have the least to do in head_conv.
template <typename T, int DK, int DV, int COLUMNS, typename PY>
inline void head_gates(constant GdnArgs& args, thread const HeadBuffers<T>& in, PY y, uint h,
                       uint b, uint t0, uint n, GateRates rates,
                       threadgroup RuleMemory<DK, COLUMNS>& mem, uint tid, uint threads) {
  const uint t = tid - (threads - BLOCK);
  if (tid < threads - BLOCK || t >= n) return;
  const float2 g = gates_of<T>(y + ulong(t) * args.y_stride, columns_of<DK, DV>(args), rates, h);
  mem.scalars[t] = float4(g.x, g.y, 0.0f, live(args, in.mask, b, t0 + t) ? 1.0f : 0.0f);
}

// Unit q and k and their product, a token a SIMD group.
template <int DK, int COLUMNS>
inline void head_unit(threadgroup RuleMemory<DK, COLUMNS>& mem, float q_scale, uint n, uint sg,
                      uint simds, uint lane) {
  constexpr int N = DK / 32;
  for (uint t = sg; t < n; t += simds) {
    threadgroup float* q = (threadgroup float*)mem.q[t] + lane * N;
    threadgroup float* k = (threadgroup float*)mem.k[t] + lane * N;
    if (mem.scalars[t].w == 0.0f) continue;
    float qq[N], kk[N];
#pragma unroll
    for (int i = 0; i < N; ++i) qq[i] = q[i], kk[i] = k[i];
    unit(qq, q_scale);
    unit(kk, 1.0f);
    const float kq = group_dot(kk, qq);
#pragma unroll
    for (int i = 0; i < N; ++i) q[i] = qq[i], k[i] = kk[i];
    if (lane == 0) mem.scalars[t].z = kq;
  }
}
