// Relational functions. A comparison of vectors gives integers (all bits set for true), as in
// clang, not MSL's bool vectors; all, any and select accept both.
#pragma once
namespace metal {
template <class T>
MSL_FN bool any(T v) {
  if constexpr (msl::is_vector<T>) {
    bool r = false;
    for (int i = 0; i < msl::vt<T>::N; ++i) r = r || v[i];
    return r;
  } else {
    return (bool)v;
  }
}
template <class T>
MSL_FN bool all(T v) {
  if constexpr (msl::is_vector<T>) {
    bool r = true;
    for (int i = 0; i < msl::vt<T>::N; ++i) r = r && v[i];
    return r;
  } else {
    return (bool)v;
  }
}
template <class T, class B>
MSL_FN T select(T a, T b, B c) {
  if constexpr (msl::is_vector<T> && msl::is_vector<B>) {
    T r;
    for (int i = 0; i < msl::vt<T>::N; ++i) r[i] = c[i] ? b[i] : a[i];
    return r;
  } else {
    return c ? b : a;
  }
}
#define MSL_PREDICATE(n, expression)                                                               \
  template <class T>                                                                               \
  MSL_FN msl::if_float<T, msl::as_wide<T, bool>> n(T x) {                                          \
    auto one = [](float v) __attribute__((always_inline, nodebug)) -> bool { return expression; }; \
    if constexpr (msl::is_vector<T>) {                                                             \
      msl::as_wide<T, bool> r;                                                                     \
      for (int i = 0; i < msl::vt<T>::N; ++i) r[i] = one((float)x[i]);                             \
      return r;                                                                                    \
    } else {                                                                                       \
      return one((float)x);                                                                        \
    }                                                                                              \
  }
MSL_PREDICATE(isnan, __builtin_isnan(v))
MSL_PREDICATE(isinf, __builtin_isinf(v))
MSL_PREDICATE(isfinite, __builtin_isfinite(v))
MSL_PREDICATE(isnormal, __builtin_isnormal(v))
MSL_PREDICATE(signbit, __builtin_signbit(v))
template <class T>
MSL_FN msl::if_float<T, bool> isunordered(T a, T b) {
  return isnan(a) || isnan(b);
}
}  // namespace metal
