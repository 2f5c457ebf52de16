// Packed vectors (element alignment), and array<T, N>.
#pragma once
// A packed type is the vector type with its alignment lowered: component access, swizzles and
// conversions are those of the vector.
#define MSL_PACKED(T)                                                              \
  typedef T packed_##T##2 __attribute__((ext_vector_type(2), aligned(sizeof(T)))); \
  typedef T packed_##T##4 __attribute__((ext_vector_type(4), aligned(sizeof(T))));
MSL_PACKED(char)
MSL_PACKED(uchar)
MSL_PACKED(short)
MSL_PACKED(ushort)
MSL_PACKED(int)
MSL_PACKED(uint)
MSL_PACKED(long)
MSL_PACKED(half)
MSL_PACKED(bfloat)
MSL_PACKED(float)
// Three components take three elements of memory, which no vector type of clang does.
#define MSL_PACKED3_OPERATOR(T, op)                                                        \
  MSL_FN T##3 operator op(packed_##T##3 a, packed_##T##3 b) { return (T##3)a op(T##3) b; } \
  MSL_FN T##3 operator op(packed_##T##3 a, T##3 b) { return (T##3)a op b; }                \
  MSL_FN T##3 operator op(T##3 a, packed_##T##3 b) { return a op(T##3) b; }                \
  MSL_FN T##3 operator op(packed_##T##3 a, T b) { return (T##3)a op(T##3) b; }             \
  MSL_FN T##3 operator op(T a, packed_##T##3 b) { return (T##3)a op(T##3) b; }
#define MSL_PACKED3(T)                                                      \
  struct packed_##T##3 {                                                    \
    using vector_type = T##3;                                               \
    T x, y, z;                                                              \
    packed_##T##3() = default;                                              \
    MSL_METHOD constexpr packed_##T##3(T a, T b, T c) : x(a), y(b), z(c) {} \
    MSL_METHOD packed_##T##3(T##3 v) : x(v.x), y(v.y), z(v.z) {}            \
    MSL_METHOD explicit packed_##T##3(T a) : x(a), y(a), z(a) {}            \
    MSL_METHOD operator T##3() const { return T##3 {x, y, z}; }             \
  };                                                                        \
  MSL_PACKED3_OPERATOR(T, +)                                                \
  MSL_PACKED3_OPERATOR(T, -)                                                \
  MSL_PACKED3_OPERATOR(T, *)                                                \
  MSL_PACKED3_OPERATOR(T, /)
MSL_PACKED3(char)
MSL_PACKED3(uchar)
MSL_PACKED3(short)
MSL_PACKED3(ushort)
MSL_PACKED3(int)
MSL_PACKED3(uint)
MSL_PACKED3(half)
MSL_PACKED3(bfloat)
MSL_PACKED3(float)

namespace metal {
template <class T, size_t N>
struct array {
  T elements[N];
  MSL_METHOD constexpr thread T& operator[](size_t i) { return elements[i]; }
  MSL_METHOD constexpr const thread T& operator[](size_t i) const { return elements[i]; }
  static constexpr size_t size() { return N; }
};
}  // namespace metal
