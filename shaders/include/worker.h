// The task bodies as a worker of a persistent kernel runs them: 256 threads, eight SIMD groups.
#pragma once
#include "core.h"
#include "projection.h"
#include "sync.h"

constant bool kInProjection [[function_constant(400)]];  // the input projection is in the program
constant bool kSlots [[function_constant(401)]];         // both states have two slots

constant constexpr uint PASSES = 4;  // of eight rows, at most

template <int DK, int DV, int NT>
struct WorkerMemory {
  CoreMemory<DK, DV> head;
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
inline void conv_state_task(constant GdnArgs& args, thread const CoreBuffers<T>& in,
                            device T* conv_out, typename Across::template in<T> Y, uint block,
                            uint b, uint tid) {
  typedef typename Across::template in<T> PY;
  const uint channel = block * WORKER + tid;
  if (channel >= args.conv_channels) return;
  conv_state_update<T, PY>(
      args, conv_input<T, PY>(args, Y, in.conv_state, in.mask, b, channel),
      conv_out + long(b) * args.conv_out_batch + long(channel) * args.conv_out_channel);
}
