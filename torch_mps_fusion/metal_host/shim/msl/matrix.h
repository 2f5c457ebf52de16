// Matrices by columns: float2x2 to float4x4, and the same in half.
#pragma once
namespace metal {
template <class T, int C, int R>
struct matrix {
  using column = T __attribute__((ext_vector_type(R)));
  using row = T __attribute__((ext_vector_type(C)));
  column columns[C];
  matrix() = default;
  MSL_METHOD explicit matrix(T diagonal) {
    for (int c = 0; c < C; ++c)
      for (int r = 0; r < R; ++r) columns[c][r] = r == c ? diagonal : T(0);
  }
  MSL_METHOD matrix(column a, column b) : columns{a, b} { static_assert(C == 2); }
  MSL_METHOD matrix(column a, column b, column c) : columns{a, b, c} { static_assert(C == 3); }
  MSL_METHOD matrix(column a, column b, column c, column d) : columns{a, b, c, d} {
    static_assert(C == 4);
  }
  MSL_METHOD thread column& operator[](int c) { return columns[c]; }
  MSL_METHOD column operator[](int c) const { return columns[c]; }
};
template <class T, int C, int R>
MSL_FN typename matrix<T, C, R>::column operator*(matrix<T, C, R> m,
                                                  typename matrix<T, C, R>::row v) {
  typename matrix<T, C, R>::column r = m.columns[0] * v[0];
  for (int c = 1; c < C; ++c) r += m.columns[c] * v[c];
  return r;
}
template <class T, int C, int R>
MSL_FN typename matrix<T, C, R>::row operator*(typename matrix<T, C, R>::column v,
                                               matrix<T, C, R> m) {
  typename matrix<T, C, R>::row r;
  for (int c = 0; c < C; ++c) r[c] = dot(v, m.columns[c]);
  return r;
}
template <class T, int C, int R, int K>
MSL_FN matrix<T, K, R> operator*(matrix<T, C, R> a, matrix<T, K, C> b) {
  matrix<T, K, R> r;
  for (int k = 0; k < K; ++k) r.columns[k] = a * b.columns[k];
  return r;
}
template <class T, int C, int R>
MSL_FN matrix<T, C, R> operator*(matrix<T, C, R> m, T s) {
  for (int c = 0; c < C; ++c) m.columns[c] *= s;
  return m;
}
template <class T, int C, int R>
MSL_FN matrix<T, C, R> operator*(T s, matrix<T, C, R> m) {
  return m * s;
}
template <class T, int C, int R>
MSL_FN matrix<T, C, R> operator+(matrix<T, C, R> a, matrix<T, C, R> b) {
  for (int c = 0; c < C; ++c) a.columns[c] += b.columns[c];
  return a;
}
template <class T, int C, int R>
MSL_FN matrix<T, C, R> operator-(matrix<T, C, R> a, matrix<T, C, R> b) {
  for (int c = 0; c < C; ++c) a.columns[c] -= b.columns[c];
  return a;
}
template <class T, int C, int R>
MSL_FN matrix<T, R, C> transpose(matrix<T, C, R> m) {
  matrix<T, R, C> t;
  for (int c = 0; c < C; ++c)
    for (int r = 0; r < R; ++r) t.columns[r][c] = m.columns[c][r];
  return t;
}
MSL_FN float determinant(matrix<float, 2, 2> m) {
  return m.columns[0][0] * m.columns[1][1] - m.columns[1][0] * m.columns[0][1];
}
MSL_FN float determinant(matrix<float, 3, 3> m) {
  return dot(m.columns[0], cross(m.columns[1], m.columns[2]));
}
#define MSL_MATRICES(T)           \
  typedef matrix<T, 2, 2> T##2x2; \
  typedef matrix<T, 2, 3> T##2x3; \
  typedef matrix<T, 2, 4> T##2x4; \
  typedef matrix<T, 3, 2> T##3x2; \
  typedef matrix<T, 3, 3> T##3x3; \
  typedef matrix<T, 3, 4> T##3x4; \
  typedef matrix<T, 4, 2> T##4x2; \
  typedef matrix<T, 4, 3> T##4x3; \
  typedef matrix<T, 4, 4> T##4x4;
MSL_MATRICES(float)
MSL_MATRICES(half)
}  // namespace metal
