// S = decay S; d = beta (v - S k); S = S + k d; O = round(S q), token by token, per value head.
//   Q, K [B*T][Hk][Dk], KQ [B*T][Hk], gates [B*T][Hv] (decay, beta), float
//   C [B*T][conv_channels], the columns of v
//   state_in (if kStateGiven), state_out float, [B][Hv] by strides of [Dv][Dk] or [Dk][Dv]; may be
//   one mask [B][T] if kMask; O [B*T][Hv][Dv], masked: not written
// Launch: 32 SG threads; grid (Dv / (4 RPL SG), Hv, B). Threadgroup memory: 64 Dk + 128 RPL SG
// bytes and 128.
// Who: a column of the state belongs to one threadgroup, from load to store.
#include "include/kernel.h"
#include "include/overlap.h"
#include "include/rule.h"

template <typename T, int DK, int DV, int COLUMNS>
inline void rule_stage(constant GdnArgs& args, device const float4* Q, device const float4* K,
                       device const float* KQ, device const float2* gates, device const T* v,
                       device const uchar* mask, uint h, uint b, uint t0, uint n,
                       threadgroup RuleMemory<DK, COLUMNS>& mem, uint tid, uint threads) {
  const ulong row = ulong(b) * args.tokens + t0;
  const uint hk = key_head(args, h);
  for (uint i = tid; i < n * (DK / 4); i += threads) {
    const uint t = i / (DK / 4), c = i % (DK / 4);
    const ulong at = ((row + t) * args.k_heads + hk) * (DK / 4) + c;
    if (!live(args, mask, b, t0 + t)) continue;
    mem.k[t][c] = K[at];
    mem.q[t][c] = Q[at];
  }
  for (uint i = tid; i < n * COLUMNS; i += threads) {
    const uint t = i / COLUMNS, c = i % COLUMNS;
    if (!live(args, mask, b, t0 + t)) continue;
    mem.v[t][c] = float(v[(row + t) * args.conv_channels + c]);
  }
  for (uint t = tid; t < n; t += threads) {
    mem.scalars[t] = float4(0.0f);
    if (!live(args, mask, b, t0 + t)) continue;
    const float2 g = gates[(row + t) * args.v_heads + h];
    mem.scalars[t] = float4(g.x, g.y, KQ[(row + t) * args.k_heads + hk], 1.0f);
  }
}

template <typename T, int DK, int DV, int RPL, int SG>
[[kernel, max_total_threads_per_threadgroup(32 * SG)]] void rule(
    device const float4* Q [[buffer(0)]], device const float4* K [[buffer(1)]],
    device const float* KQ [[buffer(2)]], device const float2* gates [[buffer(3)]],
    device const T* C [[buffer(4)]], device const float* state_in [[buffer(5)]],
    device float* state_out [[buffer(6)]], device const uchar* mask [[buffer(7)]],
    device T* O [[buffer(8)]], constant GdnArgs& args [[buffer(9)]],
    uint3 tg [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  constexpr int COLUMNS = SG * RPL * 32 / LANES;
  threadgroup RuleMemory<DK, COLUMNS> mem;
  next_may_start();
  if (args.first > 0) inputs_ready();  // an earlier dispatch wrote the state
  const uint h = tg.y, b = tg.z, first = tg.x * COLUMNS;
  const uint j = lane % LANES, local = (sg * (32 / LANES) + lane / LANES) * RPL;
  Rows<DK, RPL> r;
  if (kStateGiven)
    rows_load<DK, DV, RPL>(r,
                           state_in + long(b) * args.state_in_batch + long(h) * args.state_in_head,
                           first + local, j);
  else
    rows_zero<DK, RPL>(r);
  inputs_ready();
  const uint v = columns_of<DK, DV>(args).v + h * DV + first;
  for (uint t0 = args.first; t0 < args.first + args.count; t0 += BLOCK) {
    const uint n = min(BLOCK, args.first + args.count - t0);
    if (t0 != args.first) threadgroup_barrier(mem_flags::mem_threadgroup);
    rule_stage<T, DK, DV, COLUMNS>(args, Q, K, KQ, gates, C + v, mask, h, b, t0, n, mem, tid,
                                   32 * SG);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    rule_block<T, DK, RPL, COLUMNS>(
        r, mem, local, j, n, O + ((ulong(b) * args.tokens + t0) * args.v_heads + h) * DV + first,
        args.v_heads * DV);
  }
  rows_store<DK, DV, RPL>(
      r, state_out + long(b) * args.state_out_batch + long(h) * args.state_out_head, first + local,
      j);
}

#define TMF_FOR_DIMS(dk, dv)                                               \
  TMF_KERNELS("rule", "dk" #dk "dv" #dv "r1s4__group", rule, dk, dv, 1, 4) \
  TMF_KERNELS("rule", "dk" #dk "dv" #dv "r2s4__group", rule, dk, dv, 2, 4)
#include "include/dims.h"
