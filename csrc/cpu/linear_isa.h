// Products of one row with weights in rows, kLanes of them at a time: a decode step reads each
// weight once, from memory, and this keeps several streams going.
#pragma once

#include "cpu/norm_isa.h"
#include "cpu/rows_isa.h"
#include "cpu/simd.h"

namespace tmf::cpu::TMF_ISA {

constexpr int kStreams = kLanes < 8 ? kLanes : 8;  // weight rows that are read side by side

// Adjacent elements as kGroup vectors: one, or of bfloat16 the even and the odd of twice as many,
// which takes fewer instructions.
template <class T>
constexpr int kGroup = 1;
template <>
constexpr int kGroup<BF16> = 2;

template <class T>
TMF_INLINE void load_group(const typename T::type* x, vf (&v)[kGroup<T>]) {
  v[0] = T::load(x);
}
template <>
inline __attribute__((always_inline)) void load_group<BF16>(const uint16_t* x, vf (&v)[2]) {
  const vu pairs = load_raw<vu>(x);
  v[0] = (vf)(pairs << 16);
  v[1] = (vf)(pairs & 0xffff0000u);
}

template <class T>
TMF_INLINE void dot_rows(const typename T::type* x, const typename T::type* const* rows, int64_t n,
                         vf* sums) {
  vf sum[kStreams] = {};
  int64_t i = 0;
  for (; i + kGroup<T> * kLanes <= n; i += kGroup<T> * kLanes) {
    vf e[kGroup<T>];
    load_group<T>(x + i, e);
#pragma GCC unroll 8
    for (int r = 0; r < kStreams; ++r) {
      vf w[kGroup<T>];
      load_group<T>(rows[r] + i, w);
#pragma GCC unroll 2
      for (int j = 0; j < kGroup<T>; ++j) sum[r] = fma(w[j], e[j], sum[r]);
    }
  }
  for (; i < n; i += kLanes) {
    const vf e = load_part<T>(x + i, n - i);
#pragma GCC unroll 8
    for (int r = 0; r < kStreams; ++r) sum[r] = fma(load_part<T>(rows[r] + i, n - i), e, sum[r]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kStreams; ++r) sums[r] = sum[r];
}

// Outputs [first, last). What a row gives does not depend on the rows beside it.
template <class T>
static void linear_row(const LinearArgs& a, int64_t first, int64_t last) {
  typedef typename T::type element;
  for (int64_t row = first; row < last; row += kLanes) {
    vf sums[kLanes];
#pragma GCC unroll 4
    for (int i = 0; i < kLanes; i += kStreams) {
      const element* rows[kStreams];
      for (int r = 0; r < kStreams; ++r) {
        // Beyond the last row, that row again: its sums are not stored.
        const int64_t at = row + i + r < last ? row + i + r : last - 1;
        rows[r] = (const element*)a.weight + at * a.row_stride;
      }
      dot_rows<T>((const element*)a.x, rows, a.inputs, sums + i);
    }
    store_part<T>((element*)a.out + row, last - row, sum_rows(sums));
  }
}

static void linear_row_any_dtype(const LinearArgs& a, int64_t first, int64_t last) {
  if (a.dtype == Dtype::f32) return linear_row<F32>(a, first, last);
  if (a.dtype == Dtype::f16) return linear_row<F16>(a, first, last);
  return linear_row<BF16>(a, first, last);
}

}  // namespace tmf::cpu::TMF_ISA
