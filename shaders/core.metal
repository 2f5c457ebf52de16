// Convolution, gates, rule and gated norm of the layer in one dispatch: G from Y and both states.
//   Y [B*T][y_stride], columns q, k, v, z, b, a; the weights and states of CoreBuffers in core.h
//   state_in (if kStateGiven), state_out float, [B][Hv] by strides of [Dv][Dk] or [Dk][Dv]; may be
//   one conv_state (if kConvGiven) is only read; mask [B][T] if kMask G [B*T][Hv][Dv], zero for
//   masked tokens
// Launch: 8 Dv / RPL threads; grid (Hv, B). Threadgroup memory: 64 (Dk + Dv) + 4 Dv + 128 bytes.
// Who: a value head of a sequence belongs to one threadgroup; nothing waits for another one.
// core_part: the same for C = 4 RPL SG columns of a head, without the gated norm: G is O
// [B*T][Hv][Dv], not written for masked tokens; norm_weight is not read.
// Launch: 32 SG threads; grid (Dv / C, Hv, B). Threadgroup memory: 64 Dk + 32 C + 128 bytes.
// Who: a column belongs to one threadgroup; each one of a head convolves q and k for itself.
#include "include/core.h"
#include "include/kernel.h"
#include "include/overlap.h"

template <typename T>
inline CoreBuffers<T> core_buffers(device const T* conv_weight, device const T* conv_state,
                                   device const uchar* A_log, device const uchar* dt_bias,
                                   device const T* norm_weight, device const float* state_in,
                                   device float* state_out, device const uchar* mask) {
  CoreBuffers<T> in;
  in.conv_weight = conv_weight;
  in.conv_state = conv_state;
  in.A_log = A_log;
  in.dt_bias = dt_bias;
  in.norm_weight = norm_weight;
  in.state_in = state_in;
  in.state_out = state_out;
  in.mask = mask;
  return in;
}

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
  const CoreBuffers<T> in = core_buffers<T>(conv_weight, conv_state, A_log, dt_bias, norm_weight,
                                            state_in, state_out, mask);
  core_task<T, DK, DV, RPL, Apart>(args, in, tg.x, tg.y, Y, G, mem, tid, sg, lane, Inputs());
}

template <typename T, int DK, int DV, int RPL, int SG>
[[kernel, max_total_threads_per_threadgroup(32 * SG)]] void core_part(
    device const T* Y [[buffer(0)]], device const T* conv_weight [[buffer(1)]],
    device const T* conv_state [[buffer(2)]], device const uchar* A_log [[buffer(3)]],
    device const uchar* dt_bias [[buffer(4)]], device const T* norm_weight [[buffer(5)]],
    device const float* state_in [[buffer(6)]], device float* state_out [[buffer(7)]],
    device const uchar* mask [[buffer(8)]], device T* O [[buffer(9)]],
    constant GdnArgs& args [[buffer(10)]], uint3 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr int COLUMNS = SG * RPL * 32 / LANES;
  threadgroup RuleMemory<DK, COLUMNS> mem;
  if (args.first > 0) inputs_ready();  // an earlier dispatch wrote the state
  const CoreBuffers<T> in = core_buffers<T>(conv_weight, conv_state, A_log, dt_bias, norm_weight,
                                            state_in, state_out, mask);
  part_task<T, DK, DV, RPL, COLUMNS, Apart>(args, in, tg.y, tg.x * COLUMNS, tg.z, Y, O, mem, tid,
                                            sg, lane, Inputs());
}

#if TMF_ROWS(1)
#define TMF_ONE(dk, dv) \
  TMF_KERNELS("core", "dk" #dk "dv" #dv "r1s8__group", core_part, dk, dv, 1, 8)
#else
#define TMF_ONE(dk, dv)
#endif
#if TMF_ROWS(2)
#define TMF_TWO(dk, dv) TMF_KERNELS("core", "dk" #dk "dv" #dv "r2__group", core, dk, dv, 2)
#else
#define TMF_TWO(dk, dv)
#endif
#if TMF_ROWS(4)
#define TMF_FOUR(dk, dv) TMF_KERNELS("core", "dk" #dk "dv" #dv "r4__group", core, dk, dv, 4)
#else
#define TMF_FOUR(dk, dv)
#endif
#define TMF_FOR_DIMS(dk, dv) TMF_ONE(dk, dv) TMF_TWO(dk, dv) TMF_FOUR(dk, dv)
#include "include/dims.h"
