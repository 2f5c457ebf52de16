// C[b][t][c] = round(silu(round(sum_j w[c][j] Y[b][t - K + 1 + j][c]))) over the unmasked tokens.
//   Y [B*T][y_stride], the first conv_channels columns; weight [conv_channels][K]
//   conv_in [B][conv_channels][W] by strides, if kConvGiven; mask [B][T] by strides, if kMask
//   C [B*T][conv_channels]; rows of masked tokens are not written
// Launch: THREADS threads, a channel each; grid (ceil(count / 8), ceil(conv_channels / THREADS),
// B). Who: an output belongs to one thread; the conv state is only read.
#include "include/conv.h"
#include "include/kernel.h"
#include "include/overlap.h"

template <typename T, int THREADS>
[[kernel, max_total_threads_per_threadgroup(THREADS)]] void conv(
    device const T* Y [[buffer(0)]], device const T* weight [[buffer(1)]],
    device const T* conv_in [[buffer(2)]], device const uchar* mask [[buffer(3)]],
    device T* C [[buffer(4)]], constant GdnArgs& args [[buffer(5)]],
    uint3 tg [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
  next_may_start();
  if (args.first + tg.x > 0) inputs_ready();  // tokens before the block are read
  const uint channel = tg.y * THREADS + tid, b = tg.z, t0 = args.first + tg.x * BLOCK;
  if (channel >= args.conv_channels) return inputs_ready();
  const ConvInput<T, device const T*> in =
      conv_input<T, device const T*>(args, Y, conv_in, mask, b, channel);
  const ConvTaps taps = conv_taps(args, in, weight, channel, t0);
  inputs_ready();
  conv_block<T>(args, in, taps, t0, min(BLOCK, args.first + args.count - t0),
                C + (ulong(b) * args.tokens + t0) * args.conv_channels + channel,
                args.conv_channels);
}

TMF_KERNELS("conv", "n256__thread", conv, 256)
