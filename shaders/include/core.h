// Convolution, gates, rule and gated norm of one value head of one sequence, by one threadgroup of
// 8 Dv / RPL threads that waits for no other. The state stays in registers over all tokens.
#pragma once
#include "gated_norm.h"
#include "head.h"
#include "overlap.h"

template <int DK, int DV>
struct CoreMemory {
  RuleMemory<DK, DV> rule;
  float o[BLOCK][DV];
  float w[DV];  // of the gated norm: here, not in registers that the rule needs
};

template <typename T, int DK, int DV, int RPL>
inline void core_task(constant GdnArgs& args, thread const HeadBuffers<T>& in, uint h, uint b,
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
  HeadTaps<DK, DV, THREADS> taps;
  head_taps<T, DK, DV>(args, in, Y, h, 0, b, args.first, taps, tid);
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
    head_gates<T, DK, DV>(args, in, y, h, b, t0, n, rates, mem.rule, tid, THREADS);
    if (t0 != args.first) head_taps<T, DK, DV>(args, in, Y, h, 0, b, t0, taps, tid);
    head_conv<T, DK, DV>(args, in, Y, h, 0, b, t0, n, taps, mem.rule, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    next_may_start();  // earlier, what it asks for would come between
    head_unit<DK>(mem.rule, args.q_scale, n, sg, SIMDS, lane);
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
