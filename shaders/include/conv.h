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

template <typename T>
inline T conv_silu(thread const float (&w)[TAPS], thread const float* x) {
  const float s = rounded<T>(fma(w[3], x[3], fma(w[2], x[2], fma(w[1], x[1], w[0] * x[0]))));
  return T(silu(s));
}

// What a channel needs for TOKENS tokens, as it lies in memory. Nothing is looked at before all has
// been asked for: places that do not exist are clamped to ones that do, and left out by
// `conv_loaded`.
template <typename T, uint TOKENS>
struct ConvLoads {
  T w[TAPS], y[TOKENS + TAPS - 1], old[TAPS - 1];
};
template <typename T, uint TOKENS, typename PY>
inline void conv_ask(constant GdnArgs& args, thread const ConvInput<T, PY>& in,
                     device const T* weight, uint channel, uint t0, uint n,
                     thread ConvLoads<T, TOKENS>& loads) {
  const int taps = args.conv_taps, width = args.conv_width;
  weight += channel * args.conv_taps;
#pragma unroll
  for (int m = 0; m < TAPS; ++m) loads.w[m] = weight[max(m + taps - TAPS, 0)];
#pragma unroll
  for (int m = 0; m < int(TOKENS) + TAPS - 1; ++m) {
    const int t = clamp(int(t0) + m - (TAPS - 1), 0, int(t0 + n) - 1);
    loads.y[m] = in.y[ulong(t) * args.y_stride];
  }
#pragma unroll
  for (int m = 0; m < TAPS - 1; ++m) loads.old[m] = T(0.0f);
  if (!kConvGiven || t0 >= uint(TAPS - 1)) return;
#pragma unroll
  for (int m = 0; m < TAPS - 1; ++m) {
    const int entry = clamp(width + int(t0) + m - (TAPS - 1), 0, width - 1);
    loads.old[m] = in.state[long(entry) * args.conv_in_time];
  }
}
// Input t0 + m - 3; zero before the oldest tap and where there is none.
template <typename T, uint TOKENS>
inline float conv_loaded(constant GdnArgs& args, thread const ConvLoads<T, TOKENS>& loads, uint t0,
                         int m) {
  const int t = int(t0) + m - (TAPS - 1);
  const bool old = kConvGiven && t < 0 && int(args.conv_width) + t >= 0;
  const float fresh = float(loads.y[m]), given = float(loads.old[min(m, TAPS - 2)]);
  return m < TAPS - int(args.conv_taps) ? 0.0f : t >= 0 ? fresh : old ? given : 0.0f;
}

// Convolves tokens [t0, t0 + n) of a channel, n <= TOKENS; out[i * stride] is token t0 + i. Masked
// tokens are left out: neither read nor written.
template <typename T, uint TOKENS, typename PY, typename PO>
inline void conv_block(constant GdnArgs& args, thread const ConvInput<T, PY>& in,
                       device const T* weight, uint channel, uint t0, uint n, PO out, uint stride) {
  float w[TAPS], x[TOKENS + TAPS - 1];
  if (!kMask) {
    ConvLoads<T, TOKENS> loads;
    conv_ask<T, TOKENS>(args, in, weight, channel, t0, n, loads);
#pragma unroll
    for (int m = 0; m < TAPS; ++m)
      w[m] = m + int(args.conv_taps) >= TAPS ? float(loads.w[m]) : 0.0f;
#pragma unroll
    for (int m = 0; m < int(TOKENS) + TAPS - 1; ++m) x[m] = conv_loaded<T>(args, loads, t0, m);
#pragma unroll
    for (uint i = 0; i < TOKENS; ++i)
      if (i < n) out[i * stride] = conv_silu<T>(w, x + i);
    return;
  }
  int at = t0;
#pragma unroll
  for (int m = TAPS - 1; m >= 0; --m) {
    const int tap = m + int(args.conv_taps) - TAPS;
    w[m] = tap >= 0 ? float(weight[channel * args.conv_taps + tap]) : 0.0f;
    if (m == TAPS - 1) continue;
    at = conv_before(args, in, at);
    x[m] = tap >= 0 ? float(conv_at(args, in, at)) : 0.0f;
  }
#pragma unroll
  for (uint i = 0; i < TOKENS; ++i) {
    if (i >= n || !conv_live(args, in, int(t0 + i))) continue;
    x[3] = float(conv_at(args, in, int(t0 + i)));
    out[i * stride] = conv_silu<T>(w, x);
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
