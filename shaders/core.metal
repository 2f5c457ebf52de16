// Convolution, gates, rule and gated norm of the layer in one dispatch: G from Y and both states.
//   Y [B*T][y_stride], columns q, k, v, z, b, a; the weights and states of HeadBuffers in head.h
//   state_in (if kStateGiven), state_out float, [B][Hv] by strides of [Dv][Dk] or [Dk][Dv]; may be
//   one conv_state (if kConvGiven) is only read; mask [B][T] if kMask G [B*T][Hv][Dv], zero for
//   masked tokens
// Launch: 8 Dv / RPL threads; grid (Hv, B). Threadgroup memory: 64 (Dk + Dv) + 4 Dv + 128 bytes.
// Who: a value head of a sequence belongs to one threadgroup; nothing waits for another one.
#include "include/core.h"
#include "include/kernel.h"

template <typename T, int DK, int DV, int RPL>
[[kernel, max_total_threads_per_threadgroup(8 * DV / RPL)]] void core(
    device const T* Y [[buffer(0)]], device const T* conv_weight [[buffer(1)]],
    device const T* conv_state [[buffer(2)]], device const uchar* A_log [[buffer(3)]],
    device const uchar* dt_bias [[buffer(4)]], device const T* norm_weight [[buffer(5)]],
    device const float* state_in [[buffer(6)]], device float* state_out [[buffer(7)]],
    device const uchar* mask [[buffer(8)]], device T* G [[buffer(9)]],
    constant GdnArgs& args [[buffer(10)]], uint2 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup CoreMemory<DK, DV> mem;
  if (args.first > 0) inputs_ready();  // an earlier dispatch wrote the state
  HeadBuffers<T> in;
  in.conv_weight = conv_weight;
  in.conv_state = conv_state;
  in.A_log = A_log;
  in.dt_bias = dt_bias;
  in.norm_weight = norm_weight;
  in.state_in = state_in;
  in.state_out = state_out;
  in.mask = mask;
  core_task<T, DK, DV, RPL>(args, in, tg.x, tg.y, Y, G, mem, tid, sg, lane);
}

#define TMF_FOR_DIMS(dk, dv)                                          \
  TMF_KERNELS("core", "dk" #dk "dv" #dv "r2__group", core, dk, dv, 2) \
  TMF_KERNELS("core", "dk" #dk "dv" #dv "r4__group", core, dk, dv, 4)
#include "include/dims.h"
