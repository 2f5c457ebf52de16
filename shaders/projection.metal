// Y[R][N] = round(norm(X)[R][K] W[N][K]^T), plus a residual; W packed, float sums, T in and out.
//   W         [tiles][K/16][words][32 lanes] of 16 bytes, packed for this device
//   X         [R][x_stride], rows on 16 bytes; norm_weight [K] if kNorm
//   residual  [R][r_stride] if kResidual
//   Y         [R][y_stride], columns below n
//   gdn_y, conv_in, conv_out, mask, gdn: if kWritesConvState, see conv.h; conv_out may be conv_in
// Launch: 32 SG threads; grid (args.groups + state groups, ceil(R / 8)); group g makes tiles
// g NT, (g + groups) NT, ..; tiles % NT == 0. State groups: ceil(batch * conv_dim / (32 SG)), in
// the first row of the grid. Threadgroup memory: 256 (16 NT + 5) bytes.
// Who: a tile and its outputs belong to one threadgroup, a channel's conv state to one thread.
#include "include/abi.h"
#include "include/conv.h"
#include "include/kernel.h"
#include "include/projection.h"

constant bool kWritesConvState [[function_constant(202)]];

template <typename T, int NT, int SG, int U, bool PIPE, typename Source>
inline void projection_tiles(constant ProjectionArgs& args, device const uint4* W,
                             thread const Source& rows, uint n_rows, device T* Y,
                             device const T* residual, threadgroup ProjectionMemory<NT>& mem,
                             uint group, uint tid, uint sg, uint lane) {
  for (uint tile = group * NT; tile < args.tiles; tile += args.groups * NT) {
    if (tile != group * NT) threadgroup_barrier(mem_flags::mem_threadgroup);
    const Output<NT> o = output_of<NT>(args, tile, n_rows, tid);
    const T r = residual_of<T>(args, o, kResidual, residual);
    projection_sums<T, NT, SG, U, PIPE>(args.k, tile, W, rows, mem, sg, lane, Inputs());
    threadgroup_barrier(mem_flags::mem_threadgroup);
    projection_store<T>(args, o, Y, kResidual, r, mem, tid);
  }
}

template <typename T, int NT, int SG, int U, bool PIPE>
[[kernel, max_total_threads_per_threadgroup(32 * SG)]] void projection(
    device const uint4* W [[buffer(0)]], device const uint4* X [[buffer(1)]],
    device const uint4* norm_weight [[buffer(2)]], device const T* residual [[buffer(3)]],
    device T* Y [[buffer(4)]], constant ProjectionArgs& args [[buffer(5)]],
    device const T* gdn_y [[buffer(6)]], device const T* conv_in [[buffer(7)]],
    device T* conv_out [[buffer(8)]], device const uchar* mask [[buffer(9)]],
    constant GdnArgs& gdn [[buffer(10)]], uint3 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup ProjectionMemory<NT> mem;
  next_may_start();
  if (kWritesConvState && tg.x >= args.groups) {
    inputs_ready();
    const uint channels = gdn.conv_channels;
    const uint i = (tg.x - args.groups) * 32 * SG + tid, b = i / channels, c = i % channels;
    if (tg.y == 0 && b < gdn.batch)
      conv_state_update<T>(
          gdn, conv_input<T, device const T*>(gdn, gdn_y, conv_in, mask, b, c),
          conv_out + long(b) * gdn.conv_out_batch + long(c) * gdn.conv_out_channel);
    return;
  }
  const uint first = 8 * tg.y, n_rows = min(8u, args.rows - first);
  const uint row_words = args.x_stride * sizeof(T) / 16, pair_words = sizeof(T) / 2;
  const uint row = min(lane_row(lane), n_rows - 1);
  device const uint4* x = X + ulong(first + row) * row_words + lane_pair(lane) * pair_words;
  device T* y = Y + ulong(first) * args.y_stride;
  device const T* r = residual + ulong(first) * args.r_stride;
  if (kNorm) {
    inputs_ready();
    rows_squares<T, SG>(args.k / 32, n_rows, x, mem.squares, sg, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    NormedRows<T, device const uint4*> rows;
    rows.x = x;
    rows.w = norm_weight + lane_pair(lane) * pair_words;
    rows.inv = row_scale(&mem.squares[0][row], 8, args.k, args.eps);
    projection_tiles<T, NT, SG, U, PIPE>(args, W, rows, n_rows, y, r, mem, tg.x, tid, sg, lane);
  } else {
    PlainRows<T, device const uint4*> rows;
    rows.x = x;
    projection_tiles<T, NT, SG, U, PIPE>(args, W, rows, n_rows, y, r, mem, tg.x, tid, sg, lane);
  }
}

#if TMF_TILES(1, 2)
TMF_KERNELS("projection", "nt1u2p__group", projection, 1, 8, 2, true)
#endif
#if TMF_TILES(1, 4)
TMF_KERNELS("projection", "nt1u4__group", projection, 1, 8, 4, false)
TMF_KERNELS("projection", "nt1u4p__group", projection, 1, 8, 4, true)
#endif
#if TMF_TILES(1, 8)
TMF_KERNELS("projection", "nt1u8__group", projection, 1, 8, 8, false)
#endif
#if TMF_TILES(2, 2)
TMF_KERNELS("projection", "nt2u2p__group", projection, 2, 8, 2, true)
#endif
