// What a kernel's parameters are, as numbers that the host reads from the built library.
#pragma once
namespace metal {
template <class T>
struct atomic;
}
namespace msl {
// element: f h b float types, i u integers, o bool, s struct; columns: vector width, or 0
struct Param {
  uint size, align, element, columns, flags;
};
enum { PARAM_CONST = 1, PARAM_COHERENT = 2, PARAM_REFERENCE = 4, PARAM_ATOMIC = 8 };
template <class T>
struct inner {
  using type = T;
};
template <class T>
struct inner<metal::atomic<T>> {
  using type = T;
};
template <class T>
constexpr bool is_atomic = !same<typename inner<T>::type, T>;
template <class T>
constexpr bool is_const = false;
template <class T>
constexpr bool is_const<const T> = true;
template <class T>
constexpr bool is_const<const volatile T> = true;
template <class T>
constexpr bool is_volatile = false;
template <class T>
constexpr bool is_volatile<volatile T> = true;
template <class T>
constexpr bool is_volatile<const volatile T> = true;
template <class T>
constexpr uint element_code() {
  using E = elem<T>;
  if (same<E, float>) return 'f';
  if (same<E, half>) return 'h';
  if (same<E, bfloat>) return 'b';
  if (same<E, bool>) return 'o';
  if (__is_integral(E)) return __is_signed(E) ? 'i' : 'u';
  return 's';
}
template <class T>
constexpr Param describe(uint flags) {
  using P = typename plain<T>::type;
  using I = typename inner<P>::type;
  if (is_const<T>) flags |= PARAM_CONST;
  if (is_volatile<T>) flags |= PARAM_COHERENT;
  if (is_atomic<P>) flags |= PARAM_ATOMIC;
  return {sizeof(P), alignof(P), element_code<I>(), (uint)vt<I>::N, flags};
}
template <class T>
struct param {  // builtins
  static constexpr Param value{};
};
#define MSL_PARAM(SPACE)                                         \
  template <class T>                                             \
  struct param<SPACE T*> {                                       \
    static constexpr Param value = describe<T>(0);               \
  };                                                             \
  template <class T>                                             \
  struct param<SPACE T&> {                                       \
    static constexpr Param value = describe<T>(PARAM_REFERENCE); \
  };
MSL_PARAM(device)
#ifndef MSL_NO_ADDRESS_SPACES
MSL_PARAM(threadgroup)
// const is part of what `constant` expands to, and T keeps it
template <class T>
struct param<constant T*> {
  static constexpr Param value = describe<const T>(0);
};
template <class T>
struct param<constant T&> {
  static constexpr Param value = describe<const T>(PARAM_REFERENCE);
};
#endif
template <class F>
struct params;
template <class... A>
struct params<void(A...)> {
  static constexpr Param value[sizeof...(A) + 1] = {param<A>::value..., Param{}};
};
}  // namespace msl
#define MSL_DESCRIBE(name, ...)                           \
  extern "C" __attribute__((visibility("default"), used)) \
  const msl::Param* const mh_params_##name = msl::params<decltype(__VA_ARGS__)>::value;
