// Geometric functions.
#pragma once
namespace metal {
template <class T>
MSL_FN msl::elem<T> dot(T a, T b) {
  msl::elem<T> r = a[0] * b[0];
  for (int i = 1; i < msl::vt<T>::N; ++i) r += a[i] * b[i];
  return r;
}
template <class T>
MSL_FN msl::elem<T> length_squared(T a) {
  return dot(a, a);
}
template <class T>
MSL_FN msl::elem<T> length(T a) {
  return sqrt(dot(a, a));
}
template <class T>
MSL_FN msl::elem<T> distance(T a, T b) {
  return length(a - b);
}
template <class T>
MSL_FN msl::elem<T> distance_squared(T a, T b) {
  return length_squared(a - b);
}
template <class T>
MSL_FN T normalize(T a) {
  return a * rsqrt(dot(a, a));
}
template <class T>
MSL_FN T reflect(T i, T n) {
  return i - (msl::elem<T>)2 * dot(n, i) * n;
}
template <class T>
MSL_FN T cross(T a, T b) {
  return T{a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]};
}
namespace precise {
using metal::distance;
using metal::length;
using metal::normalize;
}  // namespace precise
namespace fast {
using metal::distance;
using metal::length;
using metal::normalize;
}  // namespace fast
}  // namespace metal
