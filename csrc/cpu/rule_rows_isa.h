// What the rule reads for one token and head, in fp32.
#pragma once

#include "cpu/rows_isa.h"
#include "cpu/simd.h"

namespace tmf::cpu::TMF_ISA {

TMF_INLINE int64_t value_head(const RuleArgs& r, int64_t key_head, int64_t i) {
  return r.tiled ? key_head + r.Hk * i : key_head * (r.Hv / r.Hk) + i;
}

// out = x, normalised if asked, times scale.
template <class T>
TMF_INLINE void widen_row(const typename T::type* x, int64_t n, bool l2norm, float scale,
                          float* out) {
  vf squares = {};
  for (int64_t i = 0; i < n; i += kLanes) {
    const vf e = T::load(x + i);
    squares = fma(e, e, squares);
    store(out + i, e);
  }
  const float norm = l2norm ? 1.0f / __builtin_sqrtf(sum(squares) + 1e-6f) : 1.0f;
  for (int64_t i = 0; i < n; i += kLanes) store(out + i, load(out + i) * norm * scale);
}

template <class T>
TMF_INLINE float beta_at(const RuleArgs& r, int64_t b, int64_t t, int64_t h) {
  return r.beta_is_f32 ? *row_of<F32>(r.beta, b, t, h) : load_one<T>(row_of<T>(r.beta, b, t, h));
}

}  // namespace tmf::cpu::TMF_ISA
