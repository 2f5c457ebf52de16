// G = round(round(w * round(O * rsqrt(mean(O^2) + eps))) * silu(z)), zero for masked tokens.
//   O [B*T][Hv][Dv]; Y [B*T][y_stride], the columns of z; norm_weight [Dv]; mask [B][T] if kMask
//   G [B*T][Hv][Dv]; may be O
// Launch: 256 threads, a SIMD group a token and value head; grid (ceil(count Hv / 8), B).
// Who: a head of a token belongs to one SIMD group, each lane reads before it writes.
#include "include/gated_norm.h"
#include "include/kernel.h"
#include "include/middle.h"
#include "include/overlap.h"

template <typename T, int DK, int DV>
[[kernel, max_total_threads_per_threadgroup(256)]] void gated_norm_stage(
    device const T* O [[buffer(0)]], device const T* Y [[buffer(1)]],
    device const T* norm_weight [[buffer(2)]], device const uchar* mask [[buffer(3)]],
    device T* G [[buffer(4)]], constant GdnArgs& args [[buffer(5)]],
    uint2 tg [[threadgroup_position_in_grid]], uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  next_may_start();
  inputs_ready();
  constexpr int N = DV / 32;
  typedef device const typename Run<T, N>::type* InRun;
  const uint i = tg.x * 8 + sg, t = args.first + i / args.v_heads, h = i % args.v_heads;
  if (i >= args.count * args.v_heads) return;
  const ulong row = ulong(tg.y) * args.tokens + t, at = (row * args.v_heads + h) * DV;
  device T* out = G + at + lane * N;
  if (!live(args, mask, tg.y, t)) {
    gated_norm_masked<T, N>(out);
    return;
  }
  float o[N], z[N], w[N];
  widen(o, ((InRun)(O + at))[lane]);
  widen(z, ((InRun)(Y + row * args.y_stride + columns_of<DK, DV>(args).z + h * DV))[lane]);
  widen(w, ((InRun)norm_weight)[lane]);
  gated_norm<T, N>(o, z, w, args.eps, out);
}

#define TMF_FOR_DIMS(dk, dv) \
  TMF_KERNELS("gated_norm", "dk" #dk "dv" #dv "__simd", gated_norm_stage, dk, dv)
#include "include/dims.h"
