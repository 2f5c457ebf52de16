// Matrix products of a simdgroup on tensor cores.
//
// simdgroup_matrix holds its elements in Apple's lane order, so that thread_elements() means the
// same on every target. mma.sync wants another order: each simdgroup_multiply_accumulate pays four
// shuffles for the difference and uses half of the instruction's rows. float x float has no
// exact tensor operation and is made of shuffles and fma.
//
// A shader whose operands are packed for it can take the device's own order, under #ifdef MSL_GPU:
//   msl::native_row(lane), msl::native_pair(lane)    r and p below
//   msl::native_mma<bfloat>(d, a, b)                 d += a b^T (half too):
//     a, 16 x 16:  a.x row r, a.y row r + 8, at k = 2p, 2p + 1;  a.z, a.w the same, k + 8
//     b,  8 x 16:  b.x row r at k = 2p, 2p + 1;  b.y the same, k + 8
//     d, 16 x 8:   d.x, d.y row r, columns 2p, 2p + 1;  d.z, d.w the same, row r + 8
//   Two elements share a word, the lower k in the lower half.
// The instructions are not volatile: they depend on nothing but their operands, and what keeps them
// in their branch is that every function is compiled as convergent.
#pragma once
namespace msl {
MSL_FN uint native_row(uint lane) { return lane >> 2; }
MSL_FN uint native_pair(uint lane) { return lane & 3; }
#define MSL_MMA16(type, d, a, b)                                   \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type       \
      ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])             \
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y))
template <class T>
MSL_FN void native_mma(float4& acc, uint4 a, uint2 b) {
  static_assert(same<T, bfloat> || same<T, half>, "native_mma<T>: bfloat or half");
  float d[4] = {acc.x, acc.y, acc.z, acc.w};
  if constexpr (same<T, bfloat>)
    MSL_MMA16("bf16", d, a, b);
  else
    MSL_MMA16("f16", d, a, b);
  acc = (float4){d[0], d[1], d[2], d[3]};
}
}  // namespace msl

namespace msl::target {
MSL_FN uint matrix_row(uint l) { return ((l >> 2) & 4) + ((l >> 1) & 3); }
MSL_FN uint matrix_col(uint l) { return ((l >> 2) & 2) * 2 + (l & 1) * 2; }
// the lane that holds element (r, c) and its neighbour
MSL_FN uint matrix_lane(uint r, uint c) {
  return ((r >> 2) << 4) | ((c >> 2) << 3) | ((r & 3) << 1) | ((c >> 1) & 1);
}
// the two orders: where in Apple's order this lane's native elements are, and the other way
MSL_FN uint to_native(uint l) { return matrix_lane(native_row(l), native_pair(l) * 2); }
MSL_FN uint from_native(uint l) { return matrix_row(l) * 4 + matrix_col(l) / 2; }

#define MSL_MMA8(type, d, a, b, c)                          \
  asm("mma.sync.aligned.m16n8k8.row.col.f32." type "." type \
      ".f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%9};"   \
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])      \
      : "r"(a), "r"(0), "r"(b), "f"(c[0]), "f"(c[1]), "f"(0.0f))
template <class T>
struct Two {
  T x[2];
};
template <class T>
MSL_FN void tensor_product(float (&d)[2], T a0, T a1, T b0, T b1, float c0, float c1) {
  const uint source = to_native(lane());
  const uint a = from_lane(bits<uint>(Two<T>{{a0, a1}}), source);
  const uint b = from_lane(bits<uint>(Two<T>{{b0, b1}}), source);
  const Two<float> c = from_lane(Two<float>{{c0, c1}}, source);
  uint columns;  // the second operand is wanted by columns
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(columns) : "r"(b));
  float r[4];
  if constexpr (same<T, bfloat>)
    MSL_MMA8("bf16", r, a, columns, c.x);
  else
    MSL_MMA8("f16", r, a, columns, c.x);
  const Two<float> back = from_lane(Two<float>{{r[0], r[1]}}, from_native(lane()));
  d[0] = back.x[0];
  d[1] = back.x[1];
}
// fp32 sums in order of k, each step rounded twice as on the host
template <class A, class B>
MSL_FN void shuffled_product(float (&d)[2], A a0, A a1, B b0, B b1, float c0, float c1) {
  const uint l = lane(), row = matrix_row(l), col = matrix_col(l);
  d[0] = c0;
  d[1] = c1;
  for (uint k = 0; k < 8; ++k) {
    const Two<A> a = from_lane(Two<A>{{a0, a1}}, matrix_lane(row, k));
    const Two<B> b = from_lane(Two<B>{{b0, b1}}, matrix_lane(k, col));
    const float x = (float)a.x[k & 1];
    d[0] += x * (float)b.x[0];
    d[1] += x * (float)b.x[1];
  }
}
template <class D, class A, class B, class C>
MSL_FN void multiply_accumulate(D (&d)[2], A a0, A a1, B b0, B b1, C c0, C c1, MSL_SITE_ARG) {
  float r[2];
  if constexpr (same<A, B> && sizeof(A) == 2)
    tensor_product(r, a0, a1, b0, b1, (float)c0, (float)c1);
  else
    shuffled_product(r, a0, a1, b0, b1, (float)c0, (float)c1);
  d[0] = (D)r[0];
  d[1] = (D)r[1];
}
}  // namespace msl::target
