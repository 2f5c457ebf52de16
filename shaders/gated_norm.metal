// G = round(round(w * round(O * rsqrt(mean(O^2) + eps))) * silu(z)), zero for masked tokens.
//   O [B*T][Hv][Dv]; Y [B*T][y_stride], the columns of z; norm_weight [Dv]; mask [B][T] if kMask
//   G [B*T][Hv][Dv]; may be O
// Launch: 256 threads, a SIMD group a token and value head; grid (ceil(count Hv / 8), B).
// Who: a head of a token belongs to one SIMD group, each lane reads before it writes.
#include "include/gated_norm.h"
#include "include/kernel.h"
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
  const uint i = tg.x * 8 + sg, t = args.first + i / args.v_heads, h = i % args.v_heads;
  if (i >= args.count * args.v_heads) return;
  gated_norm_token<T, DK, DV, Apart>(args, h, tg.y, t, O, Y, norm_weight, mask, G, lane);
}

#define TMF_FOR_DIMS(dk, dv) \
  TMF_KERNELS("gated_norm", "dk" #dk "dv" #dv "__simd", gated_norm_stage, dk, dv)
#include "include/dims.h"
