// Operations between the lanes of a simdgroup, and of a quad.
#pragma once
namespace msl {
struct OpSum {
  template <class T>
  static constexpr T identity() {
    return T(0);
  }
  template <class T>
  MSL_FN T apply(T a, T b) {
    return (T)(a + b);
  }
};
struct OpProduct {
  template <class T>
  static constexpr T identity() {
    return T(1);
  }
  template <class T>
  MSL_FN T apply(T a, T b) {
    return (T)(a * b);
  }
};
struct OpMin {
  template <class T>
  static constexpr T identity() {
    if constexpr (is_float<elem<T>>)
      return T(metal::numeric_limits<elem<T>>::infinity());
    else
      return T(metal::numeric_limits<elem<T>>::max());
  }
  template <class T>
  MSL_FN T apply(T a, T b) {
    return metal::min(a, b);
  }
};
struct OpMax {
  template <class T>
  static constexpr T identity() {
    if constexpr (is_float<elem<T>>)
      return T(-metal::numeric_limits<elem<T>>::infinity());
    else
      return T(metal::numeric_limits<elem<T>>::min());
  }
  template <class T>
  MSL_FN T apply(T a, T b) {
    return metal::max(a, b);
  }
};
struct OpAnd {
  template <class T>
  static constexpr T identity() {
    return (T)~T(0);
  }
  template <class T>
  MSL_FN T apply(T a, T b) {
    return (T)(a & b);
  }
};
struct OpOr {
  template <class T>
  static constexpr T identity() {
    return T(0);
  }
  template <class T>
  MSL_FN T apply(T a, T b) {
    return (T)(a | b);
  }
};
struct OpXor {
  template <class T>
  static constexpr T identity() {
    return T(0);
  }
  template <class T>
  MSL_FN T apply(T a, T b) {
    return (T)(a ^ b);
  }
};
}  // namespace msl
namespace metal {
class simd_vote {
  ulong mask;

 public:
  using vote_t = ulong;
  MSL_METHOD explicit simd_vote(vote_t v = 0) : mask(v) {}
  MSL_METHOD explicit operator vote_t() const { return mask; }
  MSL_METHOD bool all() const { return mask == 0xffffffffu; }
  MSL_METHOD bool any() const { return mask != 0; }
};
template <class T>
MSL_FN T simd_shuffle(T v, ushort l, MSL_SITE) {
  return msl::target::shuffle(v, l, MSL_HERE);
}
template <class T>
MSL_FN T simd_broadcast(T v, ushort l, MSL_SITE) {
  return msl::target::shuffle(v, l, MSL_HERE);
}
template <class T>
MSL_FN T simd_broadcast_first(T v, MSL_SITE) {
  return msl::target::shuffle(v, (uint)__builtin_ctz(msl::target::active_lanes()), MSL_HERE);
}
template <class T>
MSL_FN T simd_shuffle_xor(T v, ushort m, MSL_SITE) {
  return msl::target::shuffle(v, msl::target::lane() ^ m, MSL_HERE);
}
template <class T>
MSL_FN T simd_shuffle_up(T v, ushort d, MSL_SITE) {
  return msl::target::shuffle(v, msl::target::lane() - d, MSL_HERE);
}
template <class T>
MSL_FN T simd_shuffle_down(T v, ushort d, MSL_SITE) {
  return msl::target::shuffle(v, msl::target::lane() + d, MSL_HERE);
}
template <class T>
MSL_FN T simd_shuffle_rotate_up(T v, ushort d, MSL_SITE) {
  return msl::target::shuffle(v, (msl::target::lane() - d) & 31, MSL_HERE);
}
template <class T>
MSL_FN T simd_shuffle_rotate_down(T v, ushort d, MSL_SITE) {
  return msl::target::shuffle(v, (msl::target::lane() + d) & 31, MSL_HERE);
}
template <class T>
MSL_FN T simd_shuffle_and_fill_up(T v, T fill, ushort d, MSL_SITE) {
  uint l = msl::target::lane();
  T moved = msl::target::shuffle(v, l - d, MSL_HERE);
  T filled = msl::target::shuffle(fill, (l - d) & 31, MSL_HERE);
  return l < d ? filled : moved;
}
template <class T>
MSL_FN T simd_shuffle_and_fill_down(T v, T fill, ushort d, MSL_SITE) {
  uint l = msl::target::lane();
  T moved = msl::target::shuffle(v, l + d, MSL_HERE);
  T filled = msl::target::shuffle(fill, (l + d) & 31, MSL_HERE);
  return l + d > 31 ? filled : moved;
}
#define MSL_SIMD_REDUCE(n, Op)                        \
  template <class T>                                  \
  MSL_FN T simd_##n(T v, MSL_SITE) {                  \
    return msl::target::reduce<msl::Op>(v, MSL_HERE); \
  }
MSL_SIMD_REDUCE(sum, OpSum)
MSL_SIMD_REDUCE(product, OpProduct)
MSL_SIMD_REDUCE(min, OpMin)
MSL_SIMD_REDUCE(max, OpMax)
MSL_SIMD_REDUCE(and, OpAnd)
MSL_SIMD_REDUCE(or, OpOr)
MSL_SIMD_REDUCE(xor, OpXor)
#define MSL_SIMD_SCAN(n, Op)                               \
  template <class T>                                       \
  MSL_FN T simd_prefix_exclusive_##n(T v, MSL_SITE) {      \
    return msl::target::scan<msl::Op, false>(v, MSL_HERE); \
  }                                                        \
  template <class T>                                       \
  MSL_FN T simd_prefix_inclusive_##n(T v, MSL_SITE) {      \
    return msl::target::scan<msl::Op, true>(v, MSL_HERE);  \
  }
MSL_SIMD_SCAN(sum, OpSum)
MSL_SIMD_SCAN(product, OpProduct)
MSL_FN simd_vote simd_ballot(bool b, MSL_SITE) {
  return simd_vote(msl::target::ballot(b, MSL_HERE));
}
MSL_FN simd_vote simd_active_threads_mask(MSL_SITE) {
  return simd_vote(msl::target::ballot(true, MSL_HERE));
}
MSL_FN bool simd_any(bool b, MSL_SITE) { return msl::target::ballot(b, MSL_HERE) != 0; }
MSL_FN bool simd_all(bool b, MSL_SITE) { return msl::target::ballot(!b, MSL_HERE) == 0; }
MSL_FN bool simd_is_first(MSL_SITE) {
  return msl::target::lane() == (uint)__builtin_ctz(msl::target::ballot(true, MSL_HERE));
}
template <class T>
MSL_FN T quad_shuffle(T v, ushort l, MSL_SITE) {
  return msl::target::shuffle(v, (msl::target::lane() & ~3u) | (l & 3), MSL_HERE);
}
template <class T>
MSL_FN T quad_broadcast(T v, ushort l, MSL_SITE) {
  return quad_shuffle(v, l, MSL_HERE);
}
template <class T>
MSL_FN T quad_shuffle_xor(T v, ushort m, MSL_SITE) {
  return msl::target::shuffle(v, msl::target::lane() ^ (m & 3), MSL_HERE);
}
template <class T>
MSL_FN T quad_shuffle_up(T v, ushort d, MSL_SITE) {
  uint l = msl::target::lane();
  return msl::target::shuffle(v, (l & 3) < d ? l : l - d, MSL_HERE);
}
template <class T>
MSL_FN T quad_shuffle_down(T v, ushort d, MSL_SITE) {
  uint l = msl::target::lane();
  return msl::target::shuffle(v, (l & 3) + d > 3 ? l : l + d, MSL_HERE);
}
#define MSL_QUAD_REDUCE(n, Op)                             \
  template <class T>                                       \
  MSL_FN T quad_##n(T v, MSL_SITE) {                       \
    return msl::target::reduce_quad<msl::Op>(v, MSL_HERE); \
  }
MSL_QUAD_REDUCE(sum, OpSum)
MSL_QUAD_REDUCE(product, OpProduct)
MSL_QUAD_REDUCE(min, OpMin)
MSL_QUAD_REDUCE(max, OpMax)
MSL_QUAD_REDUCE(and, OpAnd)
MSL_QUAD_REDUCE(or, OpOr)
MSL_QUAD_REDUCE(xor, OpXor)
}  // namespace metal
