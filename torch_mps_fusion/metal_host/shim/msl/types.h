// Scalar types, named constants and literals.
#pragma once
#pragma clang diagnostic ignored "-Wpsabi"
#pragma clang diagnostic ignored "-Wduplicate-decl-specifier"

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef __UINTPTR_TYPE__ uintptr_t;
typedef __INTPTR_TYPE__ intptr_t;
typedef signed char int8_t;
typedef uchar uint8_t;
typedef short int16_t;
typedef ushort uint16_t;
typedef int int32_t;
typedef uint uint32_t;
typedef long int64_t;
typedef ulong uint64_t;
typedef _Float16 half;
typedef __bf16 bfloat;

// nodebug gives inlined library code the line of its caller, which is where reports must point.
#define MSL_FN static inline __attribute__((always_inline, nodebug))
#define MSL_METHOD inline __attribute__((always_inline, nodebug))

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VALF __builtin_inff()
#define MAXFLOAT __FLT_MAX__
#define FLT_MAX __FLT_MAX__
#define FLT_MIN __FLT_MIN__
#define FLT_EPSILON __FLT_EPSILON__
#define MAXHALF ((half)65504.0f)
#define HALF_MAX ((half)65504.0f)
#define HALF_MIN ((half)6.103515625e-5f)
#define HALF_EPSILON ((half)9.765625e-4f)
#define CHAR_BIT 8
#define CHAR_MAX 127
#define CHAR_MIN (-128)
#define UCHAR_MAX 255
#define SHRT_MAX 32767
#define SHRT_MIN (-32768)
#define USHRT_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define LONG_MAX 9223372036854775807l
#define LONG_MIN (-9223372036854775807l - 1)
#define ULONG_MAX 18446744073709551615ul
#define M_E_F 2.71828182845904523536f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LOG10E_F 0.43429448190325182765f
#define M_LN2_F 0.69314718055994530942f
#define M_LN10_F 2.30258509299404568402f
#define M_PI_F 3.14159265358979323846f
#define M_PI_2_F 1.57079632679489661923f
#define M_PI_4_F 0.78539816339744830962f
#define M_1_PI_F 0.31830988618379067154f
#define M_2_PI_F 0.63661977236758134308f
#define M_SQRT2_F 1.41421356237309504880f
#define M_SQRT1_2_F 0.70710678118654752440f
#define M_PI_H ((half)3.14159265358979323846f)

constexpr half operator""h(long double x) { return (half)x; }
constexpr half operator""h(unsigned long long x) { return (half)x; }
constexpr half operator"" H(long double x) { return (half)x; }
constexpr half operator"" H(unsigned long long x) { return (half)x; }

namespace msl {
template <bool B, class T = void>
struct enable {};
template <class T>
struct enable<true, T> {
  using type = T;
};
template <class A, class B>
constexpr bool same = false;
template <class A>
constexpr bool same<A, A> = true;
template <class T>
struct plain {  // without const and volatile
  using type = T;
};
template <class T>
struct plain<const T> : plain<T> {};
template <class T>
struct plain<volatile T> : plain<T> {};
template <class T>
struct plain<const volatile T> : plain<T> {};
template <bool B, class X, class Y>
struct choose {
  using type = X;
};
template <class X, class Y>
struct choose<false, X, Y> {
  using type = Y;
};
template <int N>
struct uint_of;  // the unsigned type of N bytes
template <>
struct uint_of<1> {
  using type = uchar;
};
template <>
struct uint_of<2> {
  using type = ushort;
};
template <>
struct uint_of<4> {
  using type = uint;
};
template <>
struct uint_of<8> {
  using type = ulong;
};
template <class T>
constexpr bool is_float = same<T, float> || same<T, half> || same<T, bfloat>;
template <class R, class A>
MSL_FN R bits(A a) {
  static_assert(sizeof(R) == sizeof(A), "as_type: the sizes differ");
  R r;
  __builtin_memcpy(&r, &a, sizeof(R));
  return r;
}
}  // namespace msl
#define as_type msl::bits

namespace metal {
template <class A, class B>
constexpr bool is_same_v = msl::same<A, B>;
template <class A, class B>
struct is_same {
  static constexpr bool value = msl::same<A, B>;
};
template <bool B, class T = void>
using enable_if_t = typename msl::enable<B, T>::type;
template <bool B, class X, class Y>
using conditional_t = typename msl::choose<B, X, Y>::type;
template <class T>
using remove_cv_t = typename msl::plain<T>::type;
template <class T>
constexpr bool is_floating_point_v = msl::is_float<typename msl::plain<T>::type>;
template <class T>
constexpr bool is_integral_v = __is_integral(T);
template <class T>
constexpr bool is_signed_v = __is_signed(T);
template <class T>
constexpr bool is_unsigned_v = __is_unsigned(T);
template <class T, T V>
struct integral_constant {
  static constexpr T value = V;
  constexpr operator T() const { return V; }
};
template <bool B>
using bool_constant = integral_constant<bool, B>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;
}  // namespace metal
