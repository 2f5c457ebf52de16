// Integer and bit functions, and min, max, clamp, abs of every type.
#pragma once
namespace msl {
template <class T, class R = T>
using if_int = typename enable<__is_integral(elem<T>), R>::type;
template <class T>
using unsigned_of = as_wide<T, typename uint_of<sizeof(elem<T>)>::type>;
template <class T>
constexpr int bit_size = 8 * sizeof(elem<T>);
template <class F, class T, class... A>
MSL_FN T each_int(F f, T x, A... a) {
  if constexpr (is_vector<T>) {
    T r;
    for (int i = 0; i < vt<T>::N; ++i) r[i] = (elem<T>)f(x[i], a[i]...);
    return r;
  } else {
    return (T)f(x, a...);
  }
}
}  // namespace msl
#define MSL_LAMBDA __attribute__((always_inline, nodebug))
namespace metal {
template <class T>
MSL_FN T min(T a, T b) {
  if constexpr (msl::is_vector<T>) {
    return __builtin_elementwise_min(a, b);
  } else {
    return b < a ? b : a;
  }
}
template <class T>
MSL_FN T max(T a, T b) {
  if constexpr (msl::is_vector<T>) {
    return __builtin_elementwise_max(a, b);
  } else {
    return a < b ? b : a;
  }
}
template <class T>
MSL_FN typename msl::enable<msl::is_vector<T>, T>::type min(T a, msl::elem<T> b) {
  return min(a, (T)b);
}
template <class T>
MSL_FN typename msl::enable<msl::is_vector<T>, T>::type max(T a, msl::elem<T> b) {
  return max(a, (T)b);
}
template <class T>
MSL_FN T clamp(T x, T lo, T hi) {
  return min(max(x, lo), hi);
}
template <class T>
MSL_FN typename msl::enable<msl::is_vector<T>, T>::type clamp(T x, msl::elem<T> lo,
                                                              msl::elem<T> hi) {
  return min(max(x, (T)lo), (T)hi);
}
template <class T>
MSL_FN T min3(T a, T b, T c) {
  return min(a, min(b, c));
}
template <class T>
MSL_FN T max3(T a, T b, T c) {
  return max(a, max(b, c));
}
template <class T>
MSL_FN T median3(T a, T b, T c) {
  return max(min(a, b), min(max(a, b), c));
}
template <class T>
MSL_FN T abs(T x) {
  if constexpr (msl::is_float<msl::elem<T>>) {
    return fabs(x);
  } else if constexpr (__is_unsigned(msl::elem<T>)) {
    return x;
  } else {
    return __builtin_elementwise_abs(x);
  }
}
template <class T>
MSL_FN msl::if_int<T, msl::unsigned_of<T>> absdiff(T a, T b) {
  using U = msl::unsigned_of<T>;
  return msl::each_int([](auto p, auto q, auto m, auto n)
                           MSL_LAMBDA { return m > n ? p - q : q - p; },
                       (U)a, (U)b, a, b);
}
template <class T>
MSL_FN msl::if_int<T> popcount(T x) {
  return __builtin_elementwise_popcount(x);
}
template <class T>
MSL_FN msl::if_int<T> clz(T x) {
  return msl::each_int(
      [](auto v) MSL_LAMBDA {
        int n = 0;
        for (int i = 8 * sizeof(v) - 1; i >= 0 && !((ulong)v >> i & 1); --i) ++n;
        return n;
      },
      x);
}
template <class T>
MSL_FN msl::if_int<T> ctz(T x) {
  return msl::each_int(
      [](auto v) MSL_LAMBDA {
        int n = 0;
        for (; n < (int)(8 * sizeof(v)) && !((ulong)v >> n & 1);) ++n;
        return n;
      },
      x);
}
template <>
MSL_METHOD uint clz(uint x) {
  return x ? __builtin_clz(x) : 32;
}
template <>
MSL_METHOD int clz(int x) {
  return x ? __builtin_clz(x) : 32;
}
template <>
MSL_METHOD uint ctz(uint x) {
  return x ? __builtin_ctz(x) : 32;
}
template <>
MSL_METHOD int ctz(int x) {
  return x ? __builtin_ctz(x) : 32;
}
template <class T>
MSL_FN msl::if_int<T> reverse_bits(T x) {
  return __builtin_elementwise_bitreverse(x);
}
template <class T>
MSL_FN msl::if_int<T> rotate(T x, T n) {
  using U = msl::unsigned_of<T>;
  return (T)msl::each_int(
      [](auto v, auto k) MSL_LAMBDA {
        constexpr int B = 8 * sizeof(v);
        int s = (int)(k & (B - 1));
        return s ? (v << s) | (v >> (B - s)) : v;
      },
      (U)x, (U)n);
}
template <class T>
MSL_FN msl::if_int<T> extract_bits(T x, uint offset, uint bits) {
  if (bits == 0) return T(0);
  constexpr uint B = msl::bit_size<T>;
  return (T)((x << (T)(B - bits - offset)) >> (T)(B - bits));
}
template <class T>
MSL_FN msl::if_int<T> insert_bits(T base, T insert, uint offset, uint bits) {
  using U = msl::unsigned_of<T>;
  if (bits == 0) return base;
  U mask = (U)((U)((U) ~(U)0 >> (U)(msl::bit_size<T> - bits)) << (U)offset);
  return (T)(((U)base & ~mask) | (((U)insert << (U)offset) & mask));
}
template <class T>
MSL_FN msl::if_int<T> addsat(T a, T b) {
  return __builtin_elementwise_add_sat(a, b);
}
template <class T>
MSL_FN msl::if_int<T> subsat(T a, T b) {
  return __builtin_elementwise_sub_sat(a, b);
}
template <class T>
MSL_FN msl::if_int<T> mulhi(T a, T b) {
  return msl::each_int(
      [](auto p, auto q) MSL_LAMBDA {
        if constexpr (__is_signed(decltype(p)))
          return (__int128)p * q >> (8 * sizeof(p));
        else
          return (unsigned __int128)p * q >> (8 * sizeof(p));
      },
      a, b);
}
template <class T>
MSL_FN msl::if_int<T> madhi(T a, T b, T c) {
  return mulhi(a, b) + c;
}
template <class T>
MSL_FN msl::if_int<T> mul24(T a, T b) {
  return (T)(a * b);
}
template <class T>
MSL_FN msl::if_int<T> mad24(T a, T b, T c) {
  return (T)(a * b + c);
}
template <class T>
MSL_FN msl::if_int<T> hadd(T a, T b) {
  return (a >> (T)1) + (b >> (T)1) + (a & b & (T)1);
}
template <class T>
MSL_FN msl::if_int<T> rhadd(T a, T b) {
  return (a >> (T)1) + (b >> (T)1) + ((a | b) & (T)1);
}
}  // namespace metal
