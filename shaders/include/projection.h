// The projection as a task: NT neighbouring tiles of 16 outputs for up to eight rows, by one
// threadgroup of SG SIMD groups.
// Numeric geometry: K in eight segments (rows.h); inside one, tiles accumulate in order of k in the
// matrix unit; the eight sums are added pairwise. Fixed by K and dtype alone.
// Launch geometry: NT, SG (a SIMD group takes 8 / SG segments in turn), U steps of 32 k in flight,
// PIPE: the next U steps are loaded before the products of these.
// Fragment rows beyond the last read the last row again: nothing diverges, rows never mix.
#pragma once
#include "overlap.h"
#include "rows.h"

constant bool kNorm [[function_constant(200)]];      // the rows of X are normalised
constant bool kResidual [[function_constant(201)]];  // a residual is added to the rounded sums

template <int NT>
struct ProjectionMemory {
  float part[SEGMENTS][8][16 * NT + 4];  // 4: keeps the rows of a segment on different banks
  float squares[SEGMENTS][8];
};

template <typename T, int NT, int U, typename L>
struct Batch {
  Eight<T> w[NT][2 * U];
  L x[U];
};

// Words of 16 bytes of one tile.
template <typename T>
constexpr uint tile_words() {
  return 32 * (sizeof(T) / 2);
}

template <typename T, int NT, int U, typename L>
inline void batch_weights(thread Batch<T, NT, U, L>& b, device const uint4* w, uint tile_stride,
                          uint step) {
#pragma unroll
  for (int u = 0; u < 2 * U; ++u)
#pragma unroll
    for (int t = 0; t < NT; ++t)
#pragma unroll
      for (uint j = 0; j < sizeof(T) / 2; ++j)
        b.w[t][u].w[j] =
            weight_load(w + t * tile_stride + (2 * step + u) * tile_words<T>() + 32 * j);
}
template <typename T, int NT, int U, typename L, typename Rows>
inline void batch_rows(thread Batch<T, NT, U, L>& b, thread const Rows& rows, uint step) {
#pragma unroll
  for (int u = 0; u < U; ++u) rows_fetch(rows, step + u, b.x[u]);
}
template <typename T, int NT, int U, typename L, typename Rows>
inline void batch_mma(thread Acc<T> (&acc)[NT], thread const Batch<T, NT, U, L>& b,
                      thread const Rows& rows) {
#pragma unroll
  for (int u = 0; u < U; ++u) {
    const Eight<T> x = rows_value(rows, b.x[u]);
#pragma unroll
    for (int t = 0; t < NT; ++t) {
      tile_mma(acc[t], b.w[t][2 * u], x, 0);
      tile_mma(acc[t], b.w[t][2 * u + 1], x, 1);
    }
  }
}

// Steps [step, last) of NT tiles. The first weights are asked for before the wait; if that fails,
// the sums stay as they are.
template <typename T, int NT, int U, bool PIPE, typename Rows, typename Ready>
inline void segment_sum(thread Acc<T> (&acc)[NT], device const uint4* w, uint tile_stride,
                        thread const Rows& rows, uint step, uint last, uint s,
                        thread const Ready& ready) {
  typedef typename Rows::Loaded L;
  const uint batches = (last - step) / U;
  if (PIPE && batches > 0) {
    Batch<T, NT, U, L> b0, b1;
    batch_weights<T, NT, U, L>(b0, w, tile_stride, step);
    if (!wait_for(ready, s)) return;
    batch_rows<T, NT, U, L>(b0, rows, step);
#pragma unroll 1
    for (uint i = 2; i <= batches; i += 2) {
      batch_weights<T, NT, U, L>(b1, w, tile_stride, step + U);
      batch_rows<T, NT, U, L>(b1, rows, step + U);
      batch_mma<T, NT, U, L>(acc, b0, rows);
      if (i < batches) {
        batch_weights<T, NT, U, L>(b0, w, tile_stride, step + 2 * U);
        batch_rows<T, NT, U, L>(b0, rows, step + 2 * U);
      }
      batch_mma<T, NT, U, L>(acc, b1, rows);
      step += 2 * U;
    }
    if (batches & 1) {
      batch_mma<T, NT, U, L>(acc, b0, rows);
      step += U;
    }
  } else {
#pragma unroll 1
    for (uint i = 0; i < batches; ++i) {
      Batch<T, NT, U, L> b;
      batch_weights<T, NT, U, L>(b, w, tile_stride, step);
      if (i == 0 && !wait_for(ready, s)) return;
      batch_rows<T, NT, U, L>(b, rows, step);
      batch_mma<T, NT, U, L>(acc, b, rows);
      step += U;
    }
  }
  if (batches == 0 && !wait_for(ready, s)) return;
  for (; step < last; ++step) {
    Batch<T, NT, 1, L> b;
    batch_weights<T, NT, 1, L>(b, w, tile_stride, step);
    batch_rows<T, NT, 1, L>(b, rows, step);
    batch_mma<T, NT, 1, L>(acc, b, rows);
  }
}

// Leaves the sums of all segments in mem.part. rows: this lane's row, from its first eight values.
template <typename T, int NT, int SG, int U, bool PIPE, typename Rows, typename Ready>
inline void projection_sums(uint k, uint tile, device const uint4* W, thread const Rows& rows,
                            threadgroup ProjectionMemory<NT>& mem, uint sg, uint lane,
                            thread const Ready& ready) {
  const uint steps = k / 32, tile_stride = 2 * steps * tile_words<T>();
  device const uint4* w = W + ulong(tile) * tile_stride + lane;
#pragma unroll 1
  for (uint s = sg * (SEGMENTS / SG); s < (sg + 1) * (SEGMENTS / SG); ++s) {
    Acc<T> acc[NT];
#pragma unroll
    for (int t = 0; t < NT; ++t) acc_zero(acc[t], lane);
    segment_sum<T, NT, U, PIPE>(acc, w, tile_stride, rows, segment_begin(steps, s),
                                segment_begin(steps, s + 1), s, ready);
#pragma unroll
    for (int t = 0; t < NT; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        mem.part[s][acc_row(lane, i)][16 * t + acc_n(lane, i)] = acc_value(acc[t], i);
  }
}

// A thread stores one output of NT tiles of `rows` rows at most. Its residual may be asked for long
// before; Y, residual: the first of the rows.
template <int NT>
struct Output {
  uint row, n;
  bool mine;
};
template <int NT>
inline Output<NT> output_of(constant ProjectionArgs& args, uint tile, uint rows, uint tid) {
  Output<NT> o;
  o.row = tid / (16 * NT);
  o.n = tile * 16 + tid % (16 * NT);
  o.mine = o.row < rows && o.n < args.n;
  return o;
}
template <typename T, int NT>
inline T residual_of(constant ProjectionArgs& args, Output<NT> o, bool add,
                     device const T* residual) {
  return add && o.mine ? residual[ulong(o.row) * args.r_stride + o.n] : T(0.0f);
}

// Adds the segments and stores; with a residual, the rounded sum is added to it and rounded again.
template <typename T, int NT, typename PY>
inline void projection_store(constant ProjectionArgs& args, Output<NT> o, PY Y, bool add,
                             T residual, threadgroup const ProjectionMemory<NT>& mem, uint tid) {
  if (!o.mine) return;
  float p[SEGMENTS];
#pragma unroll
  for (int s = 0; s < SEGMENTS; ++s) p[s] = mem.part[s][o.row][tid % (16 * NT)];
  float y = rounded<T>(tree<SEGMENTS>(p));
  if (add) y = float(residual) + y;
  Y[ulong(o.row) * args.y_stride + o.n] = T(y);
}

// Sums of squares of the rows into `squares`; x: this lane's row from its first eight values on.
template <typename T, int SG, typename PX>
inline void rows_squares(uint steps, uint rows, PX x, threadgroup float (&squares)[SEGMENTS][8],
                         uint sg, uint lane) {
#pragma unroll 1
  for (uint s = sg * (SEGMENTS / SG); s < (sg + 1) * (SEGMENTS / SG); ++s) {
    const float sum = segment_squares<T, 4>(x, steps, s);
    if (lane_pair(lane) == 0 && lane_row(lane) < rows) squares[s][lane_row(lane)] = sum;
  }
}
