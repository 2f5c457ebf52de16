// numeric_limits
#pragma once
namespace metal {
template <class T>
struct numeric_limits {
  static constexpr int digits = 8 * sizeof(T) - (__is_signed(T) ? 1 : 0);
  static constexpr T max() { return (T)(__is_signed(T) ? ~(1ull << (8 * sizeof(T) - 1)) : ~0ull); }
  static constexpr T min() { return (T)(__is_signed(T) ? 1ull << (8 * sizeof(T) - 1) : 0ull); }
  static constexpr T lowest() { return min(); }
};
#define MSL_LIMITS(T, DIGITS, MAX, MIN, EPSILON)                     \
  template <>                                                        \
  struct numeric_limits<T> {                                         \
    static constexpr int digits = DIGITS;                            \
    static constexpr T max() { return (T)MAX; }                      \
    static constexpr T min() { return (T)MIN; }                      \
    static constexpr T lowest() { return (T) - MAX; }                \
    static constexpr T epsilon() { return (T)EPSILON; }              \
    static constexpr T infinity() { return (T)__builtin_inff(); }    \
    static constexpr T quiet_NaN() { return (T)__builtin_nanf(""); } \
  };
MSL_LIMITS(float, 24, __FLT_MAX__, __FLT_MIN__, __FLT_EPSILON__)
MSL_LIMITS(half, 11, 65504.0f, 6.103515625e-5f, 9.765625e-4f)
MSL_LIMITS(bfloat, 8, 3.38953139e38f, __FLT_MIN__, 7.8125e-3f)
}  // namespace metal
