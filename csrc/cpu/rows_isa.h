// Where the rows of an argument lie, and which tokens are real.
#pragma once

#include "cpu/simd.h"

namespace tmf::cpu::TMF_ISA {

TMF_INLINE int64_t token_count(const Tokens& t, int64_t batch) {
  return t.index ? t.count[batch] : t.length;
}
TMF_INLINE int64_t token_at(const Tokens& t, int64_t batch, int64_t n) {
  return t.index ? t.index[batch * t.length + n] : n;
}

template <class T>
TMF_INLINE const typename T::type* row_of(const View& x, int64_t b, int64_t t, int64_t h) {
  return (const typename T::type*)x.data + b * x.stride[0] + t * x.stride[1] + h * x.stride[2];
}

}  // namespace tmf::cpu::TMF_ISA
