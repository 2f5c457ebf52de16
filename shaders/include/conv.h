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

// What the convolution of a channel takes from before token t0: weights, and the last inputs.
struct ConvTaps {
  float w[TAPS], x[TAPS - 1];
};
// With t0 = 0 nothing of Y or the mask is read. Loads are asked for together where they can be.
template <typename T, typename PY>
inline ConvTaps conv_taps(constant GdnArgs& args, thread const ConvInput<T, PY>& in,
                          device const T* weight, uint channel, uint t0) {
  ConvTaps c;
  const int missing = TAPS - int(args.conv_taps);  // leading taps that are zero
  T w[TAPS], x[TAPS - 1] = {T(0.0f), T(0.0f), T(0.0f)};
#pragma unroll
  for (int m = 0; m < TAPS; ++m) w[m] = weight[channel * args.conv_taps + max(m - missing, 0)];
  if (t0 == 0) {
    if (kConvGiven && args.conv_width > 0)
#pragma unroll
      for (int m = 0; m < TAPS - 1; ++m) {
        const int entry = max(int(args.conv_width) - (TAPS - 1) + m, 0);
        x[m] = in.state[long(entry) * args.conv_in_time];
      }
  } else if (!kMask && t0 >= TAPS - 1) {
#pragma unroll
    for (int m = 0; m < TAPS - 1; ++m) x[m] = in.y[ulong(t0 - (TAPS - 1) + m) * args.y_stride];
  } else {
    int at = t0;
#pragma unroll
    for (int m = TAPS - 2; m >= 0; --m) {
      at = conv_before(args, in, at);
      if (m >= missing) x[m] = conv_at(args, in, at);
    }
  }
#pragma unroll
  for (int m = 0; m < TAPS; ++m) c.w[m] = m >= missing ? float(w[m]) : 0.0f;
#pragma unroll
  for (int m = 0; m < TAPS - 1; ++m) c.x[m] = m >= missing ? float(x[m]) : 0.0f;
  return c;
}

// Convolves tokens [t0, t0 + n) of a channel, n <= BLOCK; out[i * stride] is token t0 + i. Masked
// tokens are left out: neither read nor written. The last token stands for those beyond n, so that
// all are asked for together.
template <typename T, typename PY, typename PO>
inline void conv_block(constant GdnArgs& args, thread const ConvInput<T, PY>& in, ConvTaps c,
                       uint t0, uint n, PO out, uint stride) {
  // not conv_live and conv_at: these tokens never lie in the state, and the compiler cannot know
  const PY y = in.y + ulong(t0) * args.y_stride;
  device const uchar* mask = in.mask + long(t0) * args.mask_token;
  bool there[BLOCK];
  T fresh[BLOCK];
#pragma unroll
  for (uint i = 0; i < BLOCK; ++i)
    there[i] = i < n && (!kMask || mask[long(min(i, n - 1)) * args.mask_token] != 0);
#pragma unroll
  for (uint i = 0; i < BLOCK; ++i)
    if (!kMask || there[i]) fresh[i] = y[min(i, n - 1) * args.y_stride];
#pragma unroll
  for (uint i = 0; i < BLOCK; ++i) {
    if (!there[i]) continue;
    const float x = float(fresh[i]);
    const float s =
        rounded<T>(fma(c.w[3], x, fma(c.w[2], c.x[2], fma(c.w[1], c.x[1], c.w[0] * c.x[0]))));
    out[i * stride] = T(silu(s));
    c.x[0] = c.x[1], c.x[1] = c.x[2], c.x[2] = x;
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
