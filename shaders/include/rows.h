// Activation rows as the projection reads them: plain, or normalised on the way by 1 + w.
// Numeric geometry of the row norm: the eight segments of the projection; in a segment the four
// lanes of a row take their eight k of each step, by fma in order into four sums that take turns,
// added pairwise; then the lanes, pairwise; then the segments, pairwise.
#pragma once
#include "tile.h"

constant constexpr int SEGMENTS = 8;
// Segment s of K holds steps of 32 k from segment_begin(s) up to segment_begin(s + 1).
inline uint segment_begin(uint steps, uint s) { return s * steps / SEGMENTS; }

template <typename T, typename P>
inline Eight<T> eight_load(P p) {
  Eight<T> v;
#pragma unroll
  for (uint j = 0; j < sizeof(T) / 2; ++j) v.w[j] = p[j];
  return v;
}

// round(x * inv * (1 + w)) of eight values.
template <typename T>
inline Eight<T> eight_normed(thread const Eight<T>& x, thread const Eight<T>& w, float inv) {
  Eight<T> y;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const vec<T, 2> xp = eight_pair<T>(x, i), wp = eight_pair<T>(w, i);
    vec<T, 2> p;
    p.x = T(float(xp.x) * inv * (1.0f + float(wp.x)));
    p.y = T(float(xp.y) * inv * (1.0f + float(wp.y)));
    eight_put(y, i, p);
  }
  return y;
}

// Adds the squares of eight values to four sums that take turns.
template <typename T>
inline void eight_squares(thread const Eight<T>& v, thread float (&sum)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const vec<T, 2> p = eight_pair<T>(v, j);
    const int i = 2 * (j & 1);
    sum[i] = fma(float(p.x), float(p.x), sum[i]);
    sum[i + 1] = fma(float(p.y), float(p.y), sum[i + 1]);
  }
}

// Sum of squares of segment s of a row; x: the row from this lane's first eight values on. U steps
// are asked for together, the last one again where there are fewer.
template <typename T, int U, typename P>
inline float segment_squares(P x, uint steps, uint s) {
  float sum[4] = {};
  const uint last = segment_begin(steps, s + 1);
  for (uint step = segment_begin(steps, s); step < last; step += U) {
    Eight<T> v[U];
#pragma unroll
    for (uint u = 0; u < uint(U); ++u)
      v[u] = eight_load<T>(x + min(step + u, last - 1) * 4 * (sizeof(T) / 2));
#pragma unroll
    for (uint u = 0; u < uint(U); ++u) {
      if (step + u < last) eight_squares(v[u], sum);
    }
  }
  return pairs_sum(tree<4>(sum));
}

// rsqrt(mean of squares + eps) from the sums of the segments, which lie `stride` apart.
inline float row_scale(threadgroup const float* squares, uint stride, uint k, float eps) {
  float p[SEGMENTS];
#pragma unroll
  for (int s = 0; s < SEGMENTS; ++s) p[s] = squares[s * stride];
  return rsqrt(tree<SEGMENTS>(p) / float(k) + eps);
}

// One lane's view of its row: the eight values of step i are those at i * 32 + lane_pair * 8.
template <typename T, typename P>
struct PlainRows {
  typedef Eight<T> Loaded;
  P x;
};
template <typename T, typename P>
inline void rows_fetch(thread const PlainRows<T, P>& r, uint step, thread Eight<T>& to) {
  to = eight_load<T>(r.x + step * 4 * (sizeof(T) / 2));
}
template <typename T, typename P>
inline Eight<T> rows_value(thread const PlainRows<T, P>&, thread const Eight<T>& v) {
  return v;
}

template <typename T>
struct TwoEights {
  Eight<T> x, w;
};
template <typename T, typename P>
struct NormedRows {
  typedef TwoEights<T> Loaded;
  P x;
  device const uint4* w;
  float inv;
};
template <typename T, typename P>
inline void rows_fetch(thread const NormedRows<T, P>& r, uint step, thread TwoEights<T>& to) {
  to.x = eight_load<T>(r.x + step * 4 * (sizeof(T) / 2));
  to.w = eight_load<T>(r.w + step * 4 * (sizeof(T) / 2));
}
template <typename T, typename P>
inline Eight<T> rows_value(thread const NormedRows<T, P>& r, thread const TwoEights<T>& v) {
  return eight_normed<T>(v.x, v.w, r.inv);
}
