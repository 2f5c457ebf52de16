// simdgroup_matrix 8x8. Lane l holds two neighbours of one row: with q = l / 4, row
// (q & 4) + (l / 2) % 4, columns (q & 2) * 2 + (l % 2) * 2 and the next.
#pragma once
namespace metal {
template <class T, int R, int C>
struct simdgroup_matrix {
  static_assert(R == 8 && C == 8, "simdgroup_matrix is 8x8");
  typedef T elements_t __attribute__((ext_vector_type(2)));
  elements_t elements;
  simdgroup_matrix() = default;
  MSL_METHOD explicit simdgroup_matrix(T x) {
    elements[0] = x;
    elements[1] = x;
  }
  MSL_METHOD thread elements_t& thread_elements() { return elements; }
  MSL_METHOD const thread elements_t& thread_elements() const { return elements; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int R = 8, int C = 8>
MSL_FN simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T x) {
  return simdgroup_matrix<T, R, C>(x);
}
template <class T, int R = 8, int C = 8>
MSL_FN simdgroup_matrix<T, R, C> make_diagonal_simdgroup_matrix(T x) {
  uint l = msl::target::lane(), r = msl::target::matrix_row(l), c = msl::target::matrix_col(l);
  simdgroup_matrix<T, R, C> m;
  m.elements[0] = r == c ? x : T(0);
  m.elements[1] = r == c + 1 ? x : T(0);
  return m;
}
#define MSL_MATRIX_LOAD(SPACE)                                                                    \
  template <class T, class U>                                                                     \
  MSL_FN void simdgroup_load(thread simdgroup_matrix<T, 8, 8>& d, SPACE U* p, ulong stride = 8,   \
                             ulong2 origin = (ulong2)(0), bool transposed = false) {              \
    static_assert(msl::same<T, typename msl::plain<U>::type>,                                     \
                  "simdgroup_load: element types differ");                                        \
    uint l = msl::target::lane(), r = msl::target::matrix_row(l), c = msl::target::matrix_col(l); \
    for (uint i = 0; i < 2; ++i)                                                                  \
      d.elements[i] = transposed ? p[(origin.y + c + i) * stride + origin.x + r]                  \
                                 : p[(origin.y + r) * stride + origin.x + c + i];                 \
  }
#define MSL_MATRIX_STORE(SPACE)                                                                   \
  template <class T, class U>                                                                     \
  MSL_FN void simdgroup_store(simdgroup_matrix<T, 8, 8> d, SPACE U* p, ulong stride = 8,          \
                              ulong2 origin = (ulong2)(0), bool transposed = false) {             \
    static_assert(msl::same<T, typename msl::plain<U>::type>,                                     \
                  "simdgroup_store: element types differ");                                       \
    uint l = msl::target::lane(), r = msl::target::matrix_row(l), c = msl::target::matrix_col(l); \
    for (uint i = 0; i < 2; ++i)                                                                  \
      (transposed ? p[(origin.y + c + i) * stride + origin.x + r]                                 \
                  : p[(origin.y + r) * stride + origin.x + c + i]) = d.elements[i];               \
  }
MSL_MATRIX_LOAD(device)
MSL_MATRIX_STORE(device)
#ifndef MSL_NO_ADDRESS_SPACES
MSL_MATRIX_LOAD(threadgroup)
MSL_MATRIX_STORE(threadgroup)
MSL_MATRIX_LOAD(constant)
#endif
template <class D, class A, class B, class C>
MSL_FN void simdgroup_multiply_accumulate(thread simdgroup_matrix<D, 8, 8>& d,
                                          simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b,
                                          simdgroup_matrix<C, 8, 8> c, MSL_SITE) {
  D r[2];
  msl::target::multiply_accumulate(r, a.elements[0], a.elements[1], b.elements[0], b.elements[1],
                                   c.elements[0], c.elements[1], MSL_HERE);
  d.elements[0] = r[0];
  d.elements[1] = r[1];
}
template <class D, class A, class B>
MSL_FN void simdgroup_multiply(thread simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                               simdgroup_matrix<B, 8, 8> b, MSL_SITE) {
  simdgroup_multiply_accumulate(d, a, b, simdgroup_matrix<D, 8, 8>(D(0)), MSL_HERE);
}
template <class T>
MSL_FN simdgroup_matrix<T, 8, 8> operator*(simdgroup_matrix<T, 8, 8> a,
                                           simdgroup_matrix<T, 8, 8> b) {
  simdgroup_matrix<T, 8, 8> d;
  simdgroup_multiply(d, a, b);
  return d;
}
}  // namespace metal
