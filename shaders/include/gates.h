// Per token: unit q and k with their product, and the gates of a value head. All in float.
#pragma once
#include "middle.h"

// x / |x| * scale over a SIMD group; 1e-6 is added to the sum of squares.
template <int N>
inline void unit(thread float (&x)[N], float scale) {
  const float inv = rsqrt(group_dot(x, x) + 1e-6f);
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = x[i] * inv * scale;
}

// An element of a vector of model dtype or float, by switch.
template <typename T>
inline float gate_parameter(device const uchar* p, uint i, bool is_float) {
  return is_float ? ((device const float*)p)[i] : float(((device const T*)p)[i]);
}

// A_log and dt_bias of a value head.
struct GateRates {
  float a_log, dt_bias;
};
template <typename T>
inline GateRates gate_rates(device const uchar* A_log, device const uchar* dt_bias, uint h) {
  GateRates r;
  r.a_log = gate_parameter<T>(A_log, h, kFloatA);
  r.dt_bias = gate_parameter<T>(dt_bias, h, kFloatDt);
  return r;
}

// (decay, beta) of value head h; y: the row of its token.
template <typename T, typename PY>
inline float2 gates_of(PY y, Columns at, GateRates rates, uint h) {
  const float beta = rounded<T>(sigmoid(float(y[at.b + h])));
  const float dt = float(y[at.a + h]) + rates.dt_bias;
  return float2(exp(-exp(rates.a_log) * softplus(dt)), beta);
}
