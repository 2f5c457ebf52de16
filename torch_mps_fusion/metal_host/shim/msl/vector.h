// Vector types, and the constructors that C++ lacks for them.
#pragma once
#define MSL_VECTORS(T)                                \
  typedef T T##2 __attribute__((ext_vector_type(2))); \
  typedef T T##3 __attribute__((ext_vector_type(3))); \
  typedef T T##4 __attribute__((ext_vector_type(4)));
MSL_VECTORS(char)
MSL_VECTORS(uchar)
MSL_VECTORS(short)
MSL_VECTORS(ushort)
MSL_VECTORS(int)
MSL_VECTORS(uint)
MSL_VECTORS(long)
MSL_VECTORS(ulong)
MSL_VECTORS(half)
MSL_VECTORS(bfloat)
MSL_VECTORS(float)
MSL_VECTORS(bool)

namespace metal {
template <class T, int N>
using vec = T __attribute__((ext_vector_type(N)));
}
namespace msl {
// vt<V>: element type E and width N of a vector type; N = 0 for a scalar
template <class V>
struct vt {
  static constexpr int N = 0;
  using E = V;
};
template <class T, int M>
struct vt<T __attribute__((ext_vector_type(M)))> {
  static constexpr int N = M;
  using E = T;
};
template <class V>
struct vt<const V> : vt<V> {};
template <class V>
struct vt<volatile V> : vt<V> {};
template <class V>
struct vt<const volatile V> : vt<V> {};
template <class V>
constexpr bool is_vector = vt<V>::N > 0;
template <class V>
constexpr bool is_scalar = __is_arithmetic(V) || same<V, half> || same<V, bfloat>;
template <class V>
using elem = typename plain<typename vt<V>::E>::type;
// a vector of U as wide as V, or a scalar
template <class V, class U, int N = vt<V>::N>
struct with_elem {
  using type = U __attribute__((ext_vector_type(N)));
};
template <class V, class U>
struct with_elem<V, U, 0> {
  using type = U;
};
template <class V, class U>
using as_wide = typename with_elem<V, U>::type;

template <class V, class A>
MSL_FN void put(V& r, int& i, A a) {
  if constexpr (is_vector<A>) {
    for (int j = 0; j < vt<A>::N; ++j) r[i++] = (elem<V>)a[j];
  } else {
    r[i++] = (elem<V>)a;
  }
}
template <class... A>
constexpr int components = (0 + ... + (is_vector<A> ? vt<A>::N : 1));

template <class V, class... A>
MSL_FN V make_from(A... a) {
  if constexpr (!is_vector<V>) {
    if constexpr (is_scalar<V> && sizeof...(A) == 1)
      return (V(a), ...);
    else
      return V(a...);
  } else if constexpr (sizeof...(A) == 0) {
    return V(0);
  } else if constexpr (sizeof...(A) == 1 && (... && !is_vector<A>)) {
    typename plain<V>::type r;
    for (int i = 0; i < vt<V>::N; ++i) r[i] = ((elem<V>)a, ...);
    return r;
  } else {
    static_assert(components<A...> == vt<V>::N, "vector constructor: wrong number of components");
    typename plain<V>::type r;
    int i = 0;
    (put(r, i, a), ...);
    return r;
  }
}
// a packed vector (packed.h) as the vector, anything else as it is
template <class A>
MSL_FN auto unpacked(const A& a, int) -> typename A::vector_type {
  return a;
}
template <class A>
MSL_FN A unpacked(A a, long) {
  return a;
}
// make<V>(a, b, ...): what MSL writes as V(a, b, ...)
template <class V, class... A>
MSL_FN V make(A... a) {
  if constexpr (is_vector<V>)
    return make_from<V>(unpacked(a, 0)...);
  else
    return make_from<V>(a...);
}
}  // namespace msl
