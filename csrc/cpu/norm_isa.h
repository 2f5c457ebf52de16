// RMS norms over the last dim: the gated one with its three roundings, and the (1 + w) one with
// one.
#pragma once

#include "cpu/rows_isa.h"
#include "cpu/simd.h"

namespace tmf::cpu::TMF_ISA {

// Vectors of a row, the last one padded with zeros.
template <class T>
TMF_INLINE vf load_part(const typename T::type* x, int64_t n) {
  if (n >= kLanes) return T::load(x);
  typename T::type lanes[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = x[i];
  return T::load(lanes);
}

template <class T>
TMF_INLINE void store_part(typename T::type* x, int64_t n, vf values) {
  if (n >= kLanes) return T::store(x, values);
  typename T::type lanes[kLanes];
  T::store(lanes, values);
  for (int64_t i = 0; i < n; ++i) x[i] = lanes[i];
}

template <class T>
static void norm(const NormArgs& a, int64_t first_row, int64_t last_row) {
  typedef typename T::type element;
  const int64_t n = a.size[3];
  const auto* weight = (const element*)a.weight;
  for (int64_t row = first_row; row < last_row; ++row) {
    const int64_t i2 = row % a.size[2], i1 = row / a.size[2] % a.size[1];
    const int64_t i0 = row / a.size[2] / a.size[1];
    const element* x = row_of<T>(a.x, i0, i1, i2);
    element* out = (element*)a.out + row * n;
    vf squares = {};
    for (int64_t i = 0; i < n; i += kLanes) {
      const vf e = load_part<T>(x + i, n - i);
      squares = fma(e, e, squares);
    }
    const float scale = 1.0f / __builtin_sqrtf(sum(squares) / (float)n + a.eps);
    if (a.gate.data == nullptr) {
      for (int64_t i = 0; i < n; i += kLanes) {
        const vf w = 1.0f + load_part<T>(weight + i, n - i);
        store_part<T>(out + i, n - i, load_part<T>(x + i, n - i) * scale * w);
      }
      continue;
    }
    const element* gate = row_of<T>(a.gate, i0, i1, i2);
    for (int64_t i = 0; i < n; i += kLanes) {
      const vf u = T::round(load_part<T>(x + i, n - i) * scale);
      const vf weighted = T::round(load_part<T>(weight + i, n - i) * u);
      store_part<T>(out + i, n - i, weighted * silu(load_part<T>(gate + i, n - i)));
    }
  }
}

static void norm_any_dtype(const NormArgs& a, int64_t first_row, int64_t last_row) {
  if (a.dtype == Dtype::f32) return norm<F32>(a, first_row, last_row);
  if (a.dtype == Dtype::f16) return norm<F16>(a, first_row, last_row);
  return norm<BF16>(a, first_row, last_row);
}

}  // namespace tmf::cpu::TMF_ISA
