// Causal depthwise convolution over the unmasked tokens of one channel, SiLU, and the conv state.
// Numeric geometry: fma from the oldest tap to the newest, rounded; SiLU, rounded.
#pragma once
#include "middle.h"

constant constexpr int TAPS = 4;  // shorter kernels have leading zero taps

// The inputs of one channel. Time t >= 0: token t of this call; -1: the newest entry of the state.
template <typename T, typename PY>
struct ConvInput {
  PY y;  // token 0
  device const T* state;
  device const uchar* mask;
};
template <typename T, typename PY>
inline ConvInput<T, PY> conv_input(constant GdnArgs& args, PY Y, device const T* state,
                                   device const uchar* mask, uint b, uint channel) {
  ConvInput<T, PY> in;
  in.y = Y + ulong(b) * args.tokens * args.y_stride + channel;
  in.state = state + long(b) * args.conv_in_batch + long(channel) * args.conv_in_channel;
  in.mask = mask + long(b) * args.mask_batch;
  return in;
}
template <typename T, typename PY>
inline T conv_at(constant GdnArgs& args, thread const ConvInput<T, PY>& in, int t) {
  if (t >= 0) return in.y[ulong(t) * args.y_stride];
  const int entry = int(args.conv_width) + t;
  return kConvGiven && entry >= 0 ? in.state[long(entry) * args.conv_in_time] : T(0.0f);
}
template <typename T, typename PY>
inline bool conv_live(constant GdnArgs& args, thread const ConvInput<T, PY>& in, int t) {
  return !kMask || t < 0 || in.mask[long(t) * args.mask_token] != 0;
}
// The unmasked time before t.
template <typename T, typename PY>
inline int conv_before(constant GdnArgs& args, thread const ConvInput<T, PY>& in, int t) {
  do --t;
  while (!conv_live(args, in, t));
  return t;
}

// Convolves tokens [t0, t0 + n) of a channel, n <= BLOCK; out[i * stride] is token t0 + i. Masked
// tokens are left out: neither read nor written.
template <typename T, typename PY, typename PO>
inline void conv_block(constant GdnArgs& args, thread const ConvInput<T, PY>& in,
                       device const T* weight, uint channel, uint t0, uint n, PO out, uint stride) {
  float w[TAPS], x[TAPS];
  int at = t0;
#pragma unroll
  for (int m = TAPS - 1; m >= 0; --m) {
    const int tap = m + int(args.conv_taps) - TAPS;
    w[m] = tap >= 0 ? float(weight[channel * args.conv_taps + tap]) : 0.0f;
    if (m == TAPS - 1) continue;
    at = conv_before(args, in, at);
    x[m] = tap >= 0 ? float(conv_at(args, in, at)) : 0.0f;
  }
  // not conv_live and conv_at: these tokens never lie in the state, and the compiler cannot know
  const PY y = in.y + ulong(t0) * args.y_stride;
  device const uchar* mask = in.mask + long(t0) * args.mask_token;
#pragma unroll
  for (uint i = 0; i < BLOCK; ++i) {
    if (i >= n || (kMask && mask[long(i) * args.mask_token] == 0)) continue;
    x[3] = float(y[i * args.y_stride]);
    const float s = rounded<T>(fma(w[3], x[3], fma(w[2], x[2], fma(w[1], x[1], w[0] * x[0]))));
    out[i * stride] = T(silu(s));
    x[0] = x[1], x[1] = x[2], x[2] = x[3];
  }
}

// Writes the last conv_width unmasked inputs of a channel, the state before them included. `out`
// may be the state that is read: entries move towards the front, in order.
template <typename T, typename PY>
inline void conv_state_update(constant GdnArgs& args, thread const ConvInput<T, PY>& in,
                              device T* out) {
  const int width = args.conv_width;
  int fresh = 0;
  for (int t = conv_before(args, in, int(args.tokens)); t >= 0 && fresh < width; ++fresh)
    t = conv_before(args, in, t);
  for (int i = 0; i < width - fresh; ++i)
    out[long(i) * args.conv_out_time] = conv_at(args, in, i + fresh - width);
  int t = args.tokens;
  for (int i = 1; i <= fresh; ++i) {
    t = conv_before(args, in, t);
    out[long(width - i) * args.conv_out_time] = conv_at(args, in, t);
  }
}
