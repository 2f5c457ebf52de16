// Scalar arithmetic that every stage shares. Contraction is off: a fused multiply-add is written
// fma(), so that a line rounds alike in whichever kernel it is inlined.
#pragma once
#include <metal_simdgroup_matrix>
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp contract(off)

// How a task reaches what another threadgroup makes: plain pointers between dispatches. A
// persistent kernel passes a policy with coherent ones.
struct Apart {
  template <typename E>
  using in = device const E*;
  template <typename E>
  using out = device E*;
};

// What a task waits for before it touches such data: nothing between dispatches. False: the data
// will not come, and the task must end.
struct Nothing {};
inline bool wait_for(thread const Nothing&, uint) { return true; }

// The checkpoint's rounding to the model dtype.
template <typename T>
inline float rounded(float x) {
  return float(T(x));
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
inline float silu(float x) { return x / (1.0f + exp(-x)); }

// log(1 + e^x) without log1p: the quotient restores what 1 + e rounds away. Above 20 it is x.
inline float softplus(float x) {
  if (x > 20.0f) return x;
  const float e = exp(x), u = 1.0f + e;
  return u == 1.0f ? e : log(u) * (e / (u - 1.0f));
}

// Butterfly over W neighbouring lanes; simd_sum has no documented order.
template <int W>
inline float lanes_sum(float v) {
#pragma unroll
  for (int o = 1; o < W; o *= 2) v += simd_shuffle_xor(v, ushort(o));
  return v;
}

// Pairwise sum of neighbours, ((0+1)+(2+3))+...; p is used up.
template <int N>
inline float tree(thread float (&p)[N]) {
#pragma unroll
  for (int w = 1; w < N; w *= 2)
#pragma unroll
    for (int i = 0; i < N; i += 2 * w) p[i] += p[i + w];
  return p[0];
}

// N adjacent elements as one load.
template <typename T, int N>
struct Run {
  typedef vec<T, N> type;
};
template <typename T>
struct Run<T, 1> {
  typedef T type;
};
template <typename T>
inline void widen(thread float (&v)[1], T x) {
  v[0] = float(x);
}
template <typename T>
inline void widen(thread float (&v)[2], vec<T, 2> x) {
  v[0] = float(x.x), v[1] = float(x.y);
}
template <typename T>
inline void widen(thread float (&v)[4], vec<T, 4> x) {
  v[0] = float(x.x), v[1] = float(x.y), v[2] = float(x.z), v[3] = float(x.w);
}

// A SIMD group holds a vector of 32 N elements, N adjacent ones a lane: its sum of products.
template <int N>
inline float group_dot(thread const float (&a)[N], thread const float (&b)[N]) {
  float p[N];
#pragma unroll
  for (int i = 0; i < N; ++i) p[i] = a[i] * b[i];
  return lanes_sum<32>(tree<N>(p));
}
