// The task bodies as a worker of a persistent kernel runs them: 256 threads, eight SIMD groups.
#pragma once
#include "gated_norm.h"
#include "head.h"
#include "projection.h"
#include "sync.h"

constant bool kInProjection [[function_constant(400)]];  // the input projection is in the program
constant bool kSlots [[function_constant(401)]];         // both states have two slots

constant constexpr uint PASSES = 4;  // of eight rows, at most

template <int DK, int NT>
struct WorkerMemory {
  RuleMemory<DK, kHeadColumns> head;
  ProjectionMemory<NT> projection;
  float squares[PASSES][SEGMENTS][8];  // of the rows of X
  uint left[WORKER / 32];              // see Launch
  uint epoch, ticket[2];               // ticket: this task's and the next one's, in turn
};

// Where a lane finds its row of a pass: the first of its words in X.
template <typename T>
inline uint row_of(constant ProjectionArgs& args, uint pass, uint lane) {
  return 8 * pass + min(lane_row(lane), min(8u, args.rows - 8 * pass) - 1);
}
template <typename T, typename P>
inline P row_words(constant ProjectionArgs& args, P X, uint row, uint lane) {
  return X + ulong(row) * (args.x_stride * sizeof(T) / 16) + lane_pair(lane) * (sizeof(T) / 2);
}

// The statistic of the row norm for all rows; a barrier must follow.
template <typename T>
inline void all_squares(constant ProjectionArgs& args, device const uint4* X,
                        threadgroup float (&squares)[PASSES][SEGMENTS][8], uint sg, uint lane) {
  for (uint pass = 0; 8 * pass < args.rows; ++pass)
    rows_squares<T, 8>(args.k / 32, min(8u, args.rows - 8 * pass),
                       row_words<T>(args, X, row_of<T>(args, pass, lane), lane), squares[pass], sg,
                       lane);
}

// NT tiles of eight rows of one projection; nothing is stored if a wait was given up.
template <typename T, int NT, int U, bool PIPE, typename Rows, typename Ready>
inline void projection_task(constant ProjectionArgs& args, uint tile, uint pass,
                            device const uint4* W, thread const Rows& rows,
                            typename Across::template out<T> Y, bool add, device const T* residual,
                            threadgroup ProjectionMemory<NT>& mem, uint tid, uint sg, uint lane,
                            thread const Ready& ready) {
  const Output<NT> o = output_of<NT>(args, tile, min(8u, args.rows - 8 * pass), tid);
  const T r = residual_of<T>(args, o, add, residual + ulong(8 * pass) * args.r_stride);
  projection_sums<T, NT, 8, U, PIPE>(args.k, tile, W, rows, mem, sg, lane, ready);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (has_left(ready)) return;
  projection_store<T>(args, o, Y + ulong(8 * pass) * args.y_stride, add, r, mem, tid);
}

// A block of WORKER channels of the conv state of a sequence, one a thread.
template <typename T>
inline void conv_state_task(constant GdnArgs& args, thread const HeadBuffers<T>& in,
                            device T* conv_out, typename Across::template in<T> Y, uint block,
                            uint b, uint tid) {
  typedef typename Across::template in<T> PY;
  const uint channel = block * WORKER + tid;
  if (channel >= args.conv_channels) return;
  conv_state_update<T, PY>(
      args, conv_input<T, PY>(args, Y, in.conv_state, in.mask, b, channel),
      conv_out + long(b) * args.conv_out_batch + long(channel) * args.conv_out_channel);
}

// kHeadColumns columns of a value head, a column a group of eight lanes: convolution to rule of all
// tokens of a sequence. What the gated norm reads goes to O [B*T][Hv][DV].
template <typename T, int DK, int DV, typename Ready>
inline void head_task(constant GdnArgs& args, thread const HeadBuffers<T>& in, uint tile, uint b,
                      typename Across::template in<T> Y, typename Across::template out<T> O,
                      threadgroup RuleMemory<DK, kHeadColumns>& mem, uint tid, uint sg, uint lane,
                      thread const Ready& ready) {
  constexpr uint PARTS = DV / kHeadColumns;
  const uint h = tile / PARTS, first = tile % PARTS * kHeadColumns;
  const uint j = lane % LANES, local = sg * (32 / LANES) + lane / LANES;
  Rows<DK, 1> r;
  if (kStateGiven)
    rows_load<DK, DV, 1>(r,
                         in.state_in + long(b) * args.state_in_batch + long(h) * args.state_in_head,
                         first + local, j);
  else
    rows_zero<DK, 1>(r);
  const GateRates rates = gate_rates<T>(in.A_log, in.dt_bias, h);
  HeadTaps<DK, kHeadColumns, WORKER> taps;
  head_taps<T, DK, DV>(args, in, Y, h, first, b, 0, taps, tid);
  if (!wait_for(ready, 0)) return;

  for (uint t0 = 0; t0 < args.count; t0 += BLOCK) {
    const uint n = min(BLOCK, args.count - t0);
    const ulong row = ulong(b) * args.tokens + t0;
    head_gates<T, DK, DV>(args, in, Y + row * args.y_stride, h, b, t0, n, rates, mem, tid, WORKER);
    if (t0 != 0) head_taps<T, DK, DV>(args, in, Y, h, first, b, t0, taps, tid);
    head_conv<T, DK, DV>(args, in, Y, h, first, b, t0, n, taps, mem, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    head_unit<DK>(mem, args.q_scale, n, sg, WORKER / 32, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    rule_block<T, DK, 1>(r, mem, local, j, n, O + (row * args.v_heads + h) * DV + first,
                         ulong(args.v_heads) * DV);
    // mem is written again
    if (t0 + BLOCK < args.count) threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  rows_store<DK, DV, 1>(
      r, in.state_out + long(b) * args.state_out_batch + long(h) * args.state_out_head,
      first + local, j);
}

// A value head's tokens of a sequence, a token a SIMD group.
template <typename T, int DK, int DV>
inline void gated_norm_task(constant GdnArgs& args, thread const HeadBuffers<T>& in, uint h, uint b,
                            typename Across::template in<T> O, typename Across::template in<T> Y,
                            typename Across::template out<T> G, uint sg, uint lane) {
  for (uint t = sg; t < args.count; t += WORKER / 32)
    gated_norm_token<T, DK, DV, Across>(args, h, b, t, O, Y, in.norm_weight, in.mask, G, lane);
}
