// Atomics: 32 bits and bool in full, 64 bits for minimum and maximum.
#pragma once
namespace metal {
template <class T>
struct atomic {
  T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<bool> atomic_bool;
typedef atomic<float> atomic_float;
typedef atomic<ulong> atomic_ulong;

#define MSL_ATOMIC_FETCH(SPACE, name, Op)                                                   \
  template <class T>                                                                        \
  MSL_FN T atomic_fetch_##name##_explicit(volatile SPACE atomic<T>* p,                      \
                                          typename msl::inner_t<T>::type v, memory_order) { \
    return msl::target::rmw<msl::target::Op, T>(&p->value, T(v));                           \
  }
#define MSL_ATOMICS(SPACE)                                                                         \
  template <class T>                                                                               \
  MSL_FN T atomic_load_explicit(const volatile SPACE atomic<T>* p, memory_order) {                 \
    return msl::target::load<T>(&p->value);                                                        \
  }                                                                                                \
  template <class T>                                                                               \
  MSL_FN void atomic_store_explicit(volatile SPACE atomic<T>* p, typename msl::inner_t<T>::type v, \
                                    memory_order) {                                                \
    msl::target::store<T>(&p->value, T(v));                                                        \
  }                                                                                                \
  template <class T>                                                                               \
  MSL_FN T atomic_exchange_explicit(volatile SPACE atomic<T>* p, typename msl::inner_t<T>::type v, \
                                    memory_order) {                                                \
    return msl::target::exchange<T>(&p->value, T(v));                                              \
  }                                                                                                \
  template <class T>                                                                               \
  MSL_FN bool atomic_compare_exchange_weak_explicit(                                               \
      volatile SPACE atomic<T>* p, thread T* expected, typename msl::inner_t<T>::type v,           \
      memory_order, memory_order) {                                                                \
    return msl::target::cas<T>(&p->value, *expected, T(v));                                        \
  }                                                                                                \
  MSL_ATOMIC_FETCH(SPACE, add, Add)                                                                \
  MSL_ATOMIC_FETCH(SPACE, sub, Sub)                                                                \
  MSL_ATOMIC_FETCH(SPACE, and, And)                                                                \
  MSL_ATOMIC_FETCH(SPACE, or, Or)                                                                  \
  MSL_ATOMIC_FETCH(SPACE, xor, Xor)                                                                \
  MSL_ATOMIC_FETCH(SPACE, min, Min)                                                                \
  MSL_ATOMIC_FETCH(SPACE, max, Max)                                                                \
  MSL_FN void atomic_min_explicit(volatile SPACE atomic<ulong>* p, ulong v, memory_order) {        \
    msl::target::rmw<msl::target::Min, ulong>(&p->value, v);                                       \
  }                                                                                                \
  MSL_FN void atomic_max_explicit(volatile SPACE atomic<ulong>* p, ulong v, memory_order) {        \
    msl::target::rmw<msl::target::Max, ulong>(&p->value, v);                                       \
  }
}  // namespace metal
namespace msl {
template <class T>
struct inner_t {  // keeps T out of deduction
  using type = T;
};
}  // namespace msl
namespace metal {
MSL_ATOMICS(device)
#ifndef MSL_NO_ADDRESS_SPACES
MSL_ATOMICS(threadgroup)
#endif
}  // namespace metal
