// Elementary functions. half and bfloat are computed in fp32 and rounded once.
#pragma once
namespace msl {
template <class T, class R = T>
using if_float = typename enable<is_float<elem<T>>, R>::type;
template <class F, class T, class... A>
MSL_FN T each(F f, T x, A... a) {
  if constexpr (is_vector<T>) {
    T r;
    for (int i = 0; i < vt<T>::N; ++i) r[i] = (elem<T>)f((float)x[i], (float)a[i]...);
    return r;
  } else {
    return (T)f((float)x, (float)a...);
  }
}
namespace target {
MSL_FN float sqrt(float x) { return __builtin_sqrtf(x); }
MSL_FN float fabs(float x) { return __builtin_fabsf(x); }
MSL_FN float floor(float x) { return __builtin_floorf(x); }
MSL_FN float ceil(float x) { return __builtin_ceilf(x); }
MSL_FN float rint(float x) { return __builtin_rintf(x); }
MSL_FN float round(float x) { return __builtin_roundf(x); }
MSL_FN float trunc(float x) { return __builtin_truncf(x); }
MSL_FN float fmin(float a, float b) { return __builtin_fminf(a, b); }
MSL_FN float fmax(float a, float b) { return __builtin_fmaxf(a, b); }
MSL_FN float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
MSL_FN float copysign(float a, float b) { return __builtin_copysignf(a, b); }
// the largest float below one bounds fract, as the specification asks
MSL_FN float fract(float x) { return fmin(x - floor(x), 0.999999940395355224609375f); }
MSL_FN float sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : x == 0 ? x : 0.0f; }
MSL_FN float saturate(float x) { return fmin(fmax(x, 0.0f), 1.0f); }
MSL_FN float exp10(float x) { return target::pow(10.0f, x); }
MSL_FN float sinpi(float x) { return target::sin(x * M_PI_F); }
MSL_FN float cospi(float x) { return target::cos(x * M_PI_F); }
MSL_FN float tanpi(float x) { return target::tan(x * M_PI_F); }
MSL_FN float fdim(float a, float b) { return a > b ? a - b : 0.0f; }
MSL_FN float powr(float a, float b) { return target::pow(a, b); }
MSL_FN float divide(float a, float b) { return a / b; }
}  // namespace target
}  // namespace msl

#define MSL_MATH1(n)                                                                           \
  template <class T>                                                                           \
  MSL_FN msl::if_float<T> n(T x) {                                                             \
    return msl::each(                                                                          \
        [](float a) __attribute__((always_inline, nodebug)) { return msl::target::n(a); }, x); \
  }
#define MSL_MATH2(n)                                                                               \
  template <class T>                                                                               \
  MSL_FN msl::if_float<T> n(T x, T y) {                                                            \
    return msl::each([](float a, float b)                                                          \
                         __attribute__((always_inline, nodebug)) { return msl::target::n(a, b); }, \
                     x, y);                                                                        \
  }
// clang-format off
#define MSL_MATH_ALL \
  MSL_MATH1(acos) MSL_MATH1(acosh) MSL_MATH1(asin) MSL_MATH1(asinh) MSL_MATH1(atan) \
  MSL_MATH1(atanh) MSL_MATH1(ceil) MSL_MATH1(cos) MSL_MATH1(cosh) MSL_MATH1(cospi) \
  MSL_MATH1(exp) MSL_MATH1(exp2) MSL_MATH1(exp10) MSL_MATH1(fabs) MSL_MATH1(floor) \
  MSL_MATH1(fract) MSL_MATH1(log) MSL_MATH1(log2) MSL_MATH1(log10) MSL_MATH1(rint) \
  MSL_MATH1(round) MSL_MATH1(rsqrt) MSL_MATH1(sin) MSL_MATH1(sinh) MSL_MATH1(sinpi) \
  MSL_MATH1(sqrt) MSL_MATH1(tan) MSL_MATH1(tanh) MSL_MATH1(tanpi) MSL_MATH1(trunc) \
  MSL_MATH2(atan2) MSL_MATH2(copysign) MSL_MATH2(divide) MSL_MATH2(fdim) MSL_MATH2(fmax) \
  MSL_MATH2(fmin) MSL_MATH2(fmod) MSL_MATH2(nextafter) MSL_MATH2(pow) MSL_MATH2(powr)
// clang-format on

namespace metal {
MSL_MATH_ALL
MSL_MATH1(erf)
MSL_MATH1(sign)
MSL_MATH1(saturate)
// There is one implementation, libm's (or libdevice's): precise and fast name the same functions.
namespace precise {
MSL_MATH_ALL
}
namespace fast {
MSL_MATH_ALL
MSL_MATH1(saturate)
}  // namespace fast

template <class T>
MSL_FN msl::if_float<T> fma(T a, T b, T c) {
  return msl::each([](float x, float y, float z) __attribute__((
                       always_inline, nodebug)) { return msl::target::fma(x, y, z); },
                   a, b, c);
}
template <class T>
MSL_FN msl::if_float<T> mad(T a, T b, T c) {
  return fma(a, b, c);
}
template <class T, class U>
MSL_FN msl::if_float<T> ldexp(T x, U n) {
  if constexpr (msl::is_vector<T>) {
    T r;
    for (int i = 0; i < msl::vt<T>::N; ++i)
      r[i] = (msl::elem<T>)msl::target::ldexp((float)x[i], n[i]);
    return r;
  } else {
    return (T)msl::target::ldexp((float)x, n);
  }
}
template <class T>
MSL_FN msl::if_float<T> frexp(T x, thread int& e) {
  return (T)msl::target::frexp((float)x, e);
}
template <class T>
MSL_FN msl::if_float<T> modf(T x, thread T& whole) {
  whole = trunc(x);
  return copysign(__builtin_isinf((float)x) ? T(0) : T(x - whole), x);
}
template <class T>
MSL_FN msl::if_float<T> sincos(T x, thread T& c) {
  c = cos(x);
  return sin(x);
}
template <class T>
MSL_FN msl::if_float<T> mix(T a, T b, T t) {
  return a + (b - a) * t;
}
template <class T>
MSL_FN typename msl::enable<msl::is_vector<T> && msl::is_float<msl::elem<T>>, T>::type mix(
    T a, T b, msl::elem<T> t) {
  return a + (b - a) * t;
}
template <class T>
MSL_FN msl::if_float<T> step(T edge, T x) {
  return msl::each([](float e, float v)
                       __attribute__((always_inline, nodebug)) { return v < e ? 0.0f : 1.0f; },
                   edge, x);
}
template <class T>
MSL_FN msl::if_float<T> smoothstep(T lo, T hi, T x) {
  T t = saturate((x - lo) / (hi - lo));
  return t * t * (T(3) - T(2) * t);
}
}  // namespace metal
