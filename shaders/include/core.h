// Convolution, gates, rule and gated norm of one value head of one sequence, by one threadgroup of
// 8 Dv / RPL threads that waits for no other. The state stays in registers over all tokens.
// The conv state is only read: heads that share a key head read the same one.
#pragma once
#include "conv.h"
#include "gated_norm.h"
#include "gates.h"
#include "overlap.h"
#include "rule.h"

template <int DK, int DV>
struct CoreMemory {
  RuleMemory<DK, DV> rule;
  float o[BLOCK][DV];
  float w[DV];  // of the gated norm: here, not in registers that the rule needs
};

template <typename T>
struct CoreBuffers {
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
inline uint core_channel(constant GdnArgs& args, uint h, uint first, uint c) {
  const Columns at = columns_of<DK, DV>(args);
  const uint hk = key_head(args, h);
  return c < DK       ? hk * DK + c
         : c < 2 * DK ? at.k + hk * DK + (c - DK)
                      : at.v + h * DV + first + (c - 2 * DK);
}
template <int DK, int COLUMNS, uint THREADS>
struct CoreTaps {
  ConvTaps of[(2 * DK + COLUMNS + THREADS - 1) / THREADS];
};
template <typename T, int DK, int DV, int COLUMNS, uint THREADS, typename PY>
inline void core_taps(constant GdnArgs& args, thread const CoreBuffers<T>& in, PY Y, uint h,
                      uint first, uint b, uint t0, thread CoreTaps<DK, COLUMNS, THREADS>& taps,
                      uint tid) {
#pragma unroll
  for (uint i = 0; i * THREADS < 2 * DK + COLUMNS; ++i) {
    const uint c = tid + i * THREADS;
    if (c >= 2 * DK + COLUMNS) break;
    const uint channel = core_channel<DK, DV>(args, h, first, c);
    const ConvInput<T, PY> source = conv_input<T, PY>(args, Y, in.conv_state, in.mask, b, channel);
    taps.of[i] = conv_taps(args, source, in.conv_weight, channel, t0);
  }
}

// q, k and v of a block into mem.
template <typename T, int DK, int DV, int COLUMNS, uint THREADS, typename PY>
inline void core_conv(constant GdnArgs& args, thread const CoreBuffers<T>& in, PY Y, uint h,
                      uint first, uint b, uint t0, uint n,
                      thread const CoreTaps<DK, COLUMNS, THREADS>& taps,
                      threadgroup RuleMemory<DK, COLUMNS>& mem, uint tid) {
#pragma unroll
  for (uint i = 0; i * THREADS < 2 * DK + COLUMNS; ++i) {
    const uint c = tid + i * THREADS;
    if (c >= 2 * DK + COLUMNS) break;
    threadgroup float* to = c < DK       ? (threadgroup float*)mem.q[0] + c
                            : c < 2 * DK ? (threadgroup float*)mem.k[0] + (c - DK)
                                         : mem.v[0] + (c - 2 * DK);
    const ConvInput<T, PY> source = conv_input<T, PY>(args, Y, in.conv_state, in.mask, b,
                                                      core_channel<DK, DV>(args, h, first, c));
    conv_block<T, PY>(args, source, taps.of[i], t0, n, to, c < 2 * DK ? DK : COLUMNS);
  }
}

// The gates of a block of tokens, by the last threads, which have the least to do in core_conv.
template <typename T, int DK, int DV, int COLUMNS, typename PY>
inline void core_gates(constant GdnArgs& args, thread const CoreBuffers<T>& in, PY y, uint h,
                       uint b, uint t0, uint n, GateRates rates,
                       threadgroup RuleMemory<DK, COLUMNS>& mem, uint tid, uint threads) {
  const uint t = tid - (threads - BLOCK);
  if (tid < threads - BLOCK || t >= n) return;
  const float2 g = gates_of<T>(y + ulong(t) * args.y_stride, columns_of<DK, DV>(args), rates, h);
  mem.scalars[t] = float4(g.x, g.y, 0.0f, live(args, in.mask, b, t0 + t) ? 1.0f : 0.0f);
}

// Unit q and k and their product, a token a SIMD group.
template <int DK, int COLUMNS>
inline void core_unit(threadgroup RuleMemory<DK, COLUMNS>& mem, float q_scale, uint n, uint sg,
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

template <typename T, int DK, int DV, int RPL>
inline void core_task(constant GdnArgs& args, thread const CoreBuffers<T>& in, uint h, uint b,
                      device const T* Y, device T* G, threadgroup CoreMemory<DK, DV>& mem, uint tid,
                      uint sg, uint lane) {
  constexpr uint THREADS = DV * LANES / RPL, SIMDS = THREADS / 32;
  constexpr uint TURNS = (BLOCK + SIMDS - 1) / SIMDS;  // tokens that a SIMD group normalises
  constexpr int N = DV / 32;
  typedef device const typename Run<T, N>::type* InRun;
  const Columns at = columns_of<DK, DV>(args);
  const uint j = lane % LANES, column = (sg * (32 / LANES) + lane / LANES) * RPL;
  Rows<DK, RPL> r;
  if (kStateGiven)
    rows_load<DK, DV, RPL>(
        r, in.state_in + long(b) * args.state_in_batch + long(h) * args.state_in_head, column, j);
  else
    rows_zero<DK, RPL>(r);
  for (uint c = tid; c < DV; c += THREADS) mem.w[c] = float(in.norm_weight[c]);
  const GateRates rates = gate_rates<T>(in.A_log, in.dt_bias, h);
  CoreTaps<DK, DV, THREADS> taps;
  core_taps<T, DK, DV>(args, in, Y, h, 0, b, args.first, taps, tid);
  inputs_ready();

  for (uint t0 = args.first; t0 < args.first + args.count; t0 += BLOCK) {
    const uint n = min(BLOCK, args.first + args.count - t0);
    const ulong row = ulong(b) * args.tokens + t0;
    device const T* y = Y + row * args.y_stride;
    typename Run<T, N>::type z[TURNS];  // asked for now, used at the end of the block
#pragma unroll
    for (uint i = 0; i < TURNS; ++i)
      if (i * SIMDS + sg < n)
        z[i] = ((InRun)(y + ulong(i * SIMDS + sg) * args.y_stride + at.z + h * DV))[lane];
    core_gates<T, DK, DV>(args, in, y, h, b, t0, n, rates, mem.rule, tid, THREADS);
    if (t0 != args.first) core_taps<T, DK, DV>(args, in, Y, h, 0, b, t0, taps, tid);
    core_conv<T, DK, DV>(args, in, Y, h, 0, b, t0, n, taps, mem.rule, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    next_may_start();  // earlier, what it asks for would come between
    core_unit<DK>(mem.rule, args.q_scale, n, sg, SIMDS, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    rule_block<T, DK, RPL>(r, mem.rule, column, j, n, mem.o[0], DV);
    if (t0 + BLOCK >= args.first + args.count)  // before the gated norm, which is long enough
      rows_store<DK, DV, RPL>(
          r, in.state_out + long(b) * args.state_out_batch + long(h) * args.state_out_head, column,
          j);
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (uint i = 0; i < TURNS; ++i) {
      const uint t = i * SIMDS + sg;
      if (t >= n) break;
      device T* out = G + ((row + t) * args.v_heads + h) * DV + lane * N;
      if (mem.rule.scalars[t].w == 0.0f) {
        gated_norm_masked<T, N>(out);
        continue;
      }
      float o[N], zz[N], w[N];
      widen(zz, z[i]);
#pragma unroll
      for (int e = 0; e < N; ++e) o[e] = mem.o[t][lane * N + e], w[e] = mem.w[lane * N + e];
      gated_norm<T, N>(o, zz, w, args.eps, out);
    }
    // scalars are written again before the next barrier
    if (t0 + BLOCK < args.first + args.count) threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}
