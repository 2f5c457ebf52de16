// q = q / |q| / sqrt(Dk), k = k / |k|, kq = k.q; decay = exp(-exp(A) softplus(a + dt)),
// beta = round(sigmoid(b)).
//   C [B*T][conv_channels], columns q, k, v; Y [B*T][y_stride], columns b and a
//   A_log, dt_bias [Hv], T or float; mask [B][T] if kMask
//   Q, K [B*T][Hk][Dk], KQ [B*T][Hk], gates [B*T][Hv] (decay, beta), float; masked: not written
// Launch: 256 threads, a SIMD group a token and key head; grid (ceil(count Hk / 8), B).
// Who: an output belongs to one SIMD group.
#include "include/gates.h"
#include "include/kernel.h"
#include "include/overlap.h"

template <typename T, int DK, int DV>
[[kernel, max_total_threads_per_threadgroup(256)]] void qk_gates(
    device const T* C [[buffer(0)]], device const T* Y [[buffer(1)]],
    device const uchar* A_log [[buffer(2)]], device const uchar* dt_bias [[buffer(3)]],
    device const uchar* mask [[buffer(4)]], device float* Q [[buffer(5)]],
    device float* K [[buffer(6)]], device float* KQ [[buffer(7)]],
    device float2* gates [[buffer(8)]], constant GdnArgs& args [[buffer(9)]],
    uint2 tg [[threadgroup_position_in_grid]], uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  next_may_start();
  inputs_ready();
  constexpr int N = DK / 32;
  typedef typename Run<T, N>::type TRun;
  const uint i = tg.x * 8 + sg, t = args.first + i / args.k_heads, hk = i % args.k_heads;
  if (i >= args.count * args.k_heads || !live(args, mask, tg.y, t)) return;
  const ulong row = ulong(tg.y) * args.tokens + t, at = (row * args.k_heads + hk) * DK + lane * N;
  device const T* c = C + row * args.conv_channels + hk * DK;
  float q[N], k[N];
  widen(q, ((device const TRun*)c)[lane]);
  widen(k, ((device const TRun*)(c + args.k_heads * DK))[lane]);
  unit(q, args.q_scale);
  unit(k, 1.0f);
  const float kq = group_dot(k, q);
#pragma unroll
  for (int n = 0; n < N; ++n) Q[at + n] = q[n], K[at + n] = k[n];
  if (lane == 0) KQ[row * args.k_heads + hk] = kq;
  // gates know no key head: an equal share of the value heads, whatever the map
  const uint share = args.v_heads / args.k_heads;
  for (uint h = hk * share + lane; h < (hk + 1) * share; h += 32)
    gates[row * args.v_heads + h] = gates_of<T>(Y + row * args.y_stride, columns_of<DK, DV>(args),
                                                gate_rates<T>(A_log, dt_bias, h), h);
}

#define TMF_FOR_DIMS(dk, dv) TMF_KERNELS("qk_gates", "dk" #dk "dv" #dv "__simd", qk_gates, dk, dv)
#include "include/dims.h"
