// The target "this machine": every Metal thread is a fiber of the runtime (../../runtime).
#pragma once
// Real address spaces, so that clang rejects what Metal rejects. They are all one space to the
// machine, so instrumentation sees them. MSL_NO_ADDRESS_SPACES turns the checks off.
#ifdef MSL_NO_ADDRESS_SPACES
#define device
#define threadgroup
#define constant const
#else
#define device __attribute__((opencl_global))
#define threadgroup __attribute__((opencl_local))
#define constant const __attribute__((opencl_constant))
#endif
#define thread
#define kernel
// The checking build tells volatile accesses apart, and a user's own `volatile` is taken out of
// the text, so that volatile means coherent and nothing else.
#define coherent(scope) volatile

// The place of a call in the text: defaulted parameters that end in the runtime's reports.
#define MSL_SITE const char *msl_file = __builtin_FILE(), int msl_line = __builtin_LINE()
#define MSL_SITE_ARG const char *msl_file, int msl_line
#define MSL_HERE msl_file, msl_line

extern "C" {
void mh_barrier(uint flags, const char* file, int line) __attribute__((convergent));
void mh_simd_barrier(uint flags, const char* file, int line) __attribute__((convergent));
// Every lane leaves n <= 32 bytes in its slot; the last to arrive applies `combine` to the slots
// of the live lanes; then v becomes slot `source`. need: what the operation asks of other lanes
// (see MshNeed in runtime/abi.h).
void mh_exchange(void* v, uint n, uint source, void (*combine)(void* slots, uint live), uint need,
                 const char* file, int line) __attribute__((convergent));
uint mh_lane();
uint mh_live_lanes();
uint mh_ticks();
void* mh_threadgroup(const void* key, size_t bytes, size_t align, const char* name,
                     const char* file, int line);
// op and type as in runtime/abi.h; returns the old value
ulong mh_atomic(void* p, uint op, uint type, ulong value, ulong* expected);
void mh_fence(uint flags, uint order, uint scope);
float expf(float);
float exp2f(float);
float logf(float);
float log2f(float);
float log10f(float);
float log1pf(float);
float expm1f(float);
float sinf(float);
float cosf(float);
float tanf(float);
float asinf(float);
float acosf(float);
float atanf(float);
float sinhf(float);
float coshf(float);
float tanhf(float);
float asinhf(float);
float acoshf(float);
float atanhf(float);
float erff(float);
float powf(float, float);
float atan2f(float, float);
float fmodf(float, float);
float nextafterf(float, float);
float ldexpf(float, int);
float frexpf(float, int*);
// What clang calls for float -> bfloat where the machine has no instruction for it.
__attribute__((weak, visibility("hidden"), no_sanitize("thread"))) __bf16 __truncsfbf2(float f) {
  uint u = __builtin_bit_cast(uint, f);
  u = (u & 0x7fffffff) > 0x7f800000 ? u | 0x400000 : u + 0x7fff + ((u >> 16) & 1);
  return __builtin_bit_cast(__bf16, (ushort)(u >> 16));
}
}

namespace msl::target {
#define MSL_LIBM1(n) \
  MSL_FN float n(float x) { return ::n##f(x); }
#define MSL_LIBM2(n) \
  MSL_FN float n(float x, float y) { return ::n##f(x, y); }
MSL_LIBM1(exp)
MSL_LIBM1(exp2)
MSL_LIBM1(log)
MSL_LIBM1(log2)
MSL_LIBM1(log10)
MSL_LIBM1(sin)
MSL_LIBM1(cos)
MSL_LIBM1(tan)
MSL_LIBM1(asin)
MSL_LIBM1(acos)
MSL_LIBM1(atan)
MSL_LIBM1(sinh)
MSL_LIBM1(cosh)
MSL_LIBM1(tanh)
MSL_LIBM1(asinh)
MSL_LIBM1(acosh)
MSL_LIBM1(atanh)
MSL_LIBM1(erf)
MSL_LIBM2(pow)
MSL_LIBM2(atan2)
MSL_LIBM2(fmod)
MSL_LIBM2(nextafter)
MSL_FN float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
MSL_FN float ldexp(float x, int n) { return ::ldexpf(x, n); }
MSL_FN float frexp(float x, int& e) { return ::frexpf(x, &e); }

MSL_FN uint lane() { return mh_lane(); }
MSL_FN uint active_lanes() { return mh_live_lanes(); }
// steps of the scheduler
MSL_FN uint ticks() { return mh_ticks(); }
MSL_FN void barrier(uint flags, MSL_SITE_ARG) { mh_barrier(flags, MSL_HERE); }
MSL_FN void simd_barrier(uint flags, MSL_SITE_ARG) { mh_simd_barrier(flags, MSL_HERE); }
MSL_FN void fence(uint flags, uint order, uint scope) { mh_fence(flags, order, scope); }

// ---- exchange between lanes
enum { NEED_LIVE = 0, NEED_SOURCE = 1, NEED_ALL = 2 };  // MshNeed
constexpr uint SLOT = 32;                               // bytes a lane
#define MSL_UNCHECKED __attribute__((no_sanitize("thread")))
template <class T>
MSL_UNCHECKED MSL_FN T slot(const void* slots, uint i) {
  T r;
  __builtin_memcpy(&r, (const char*)slots + SLOT * i, sizeof(T));
  return r;
}
template <class T>
MSL_UNCHECKED MSL_FN void set_slot(void* slots, uint i, T v) {
  __builtin_memcpy((char*)slots + SLOT * i, &v, sizeof(T));
}
// v of lane `source`; a source beyond the simdgroup keeps the own value
template <class T>
MSL_FN T shuffle(T v, uint source, MSL_SITE_ARG) {
  static_assert(sizeof(T) <= SLOT, "simdgroup operation: the value is too large");
  mh_exchange(&v, sizeof(T), source < 32 ? source : mh_lane(), nullptr, NEED_SOURCE, MSL_HERE);
  return v;
}
// Reductions in butterfly order; lanes that are not live count as the identity.
template <class Op, class T>
MSL_UNCHECKED static void combine(void* slots, uint live) {
  T t[32];
  for (uint i = 0; i < 32; ++i)
    t[i] = (live >> i & 1) ? slot<T>(slots, i) : Op::template identity<T>();
  for (uint o = 16; o; o >>= 1)
    for (uint i = 0; i < o; ++i) t[i] = Op::apply(t[i], t[i + o]);
  for (uint i = 0; i < 32; ++i) set_slot(slots, i, t[0]);
}
template <class Op, class T>
MSL_FN T reduce(T v, MSL_SITE_ARG) {
  mh_exchange(&v, sizeof(T), mh_lane(), &combine<Op, T>, NEED_LIVE, MSL_HERE);
  return v;
}
template <class Op, class T, bool Inclusive>
MSL_UNCHECKED static void combine_scan(void* slots, uint live) {
  T sum = Op::template identity<T>();
  for (uint i = 0; i < 32; ++i) {
    if (!(live >> i & 1)) continue;
    T v = slot<T>(slots, i), next = Op::apply(sum, v);
    set_slot(slots, i, Inclusive ? next : sum);
    sum = next;
  }
}
template <class Op, bool Inclusive, class T>
MSL_FN T scan(T v, MSL_SITE_ARG) {
  mh_exchange(&v, sizeof(T), mh_lane(), &combine_scan<Op, T, Inclusive>, NEED_LIVE, MSL_HERE);
  return v;
}
// reduction over the four lanes of a quad
template <class Op, class T>
MSL_UNCHECKED static void combine_quads(void* slots, uint live) {
  for (uint q = 0; q < 32; q += 4) {
    T t[4];
    for (uint i = 0; i < 4; ++i)
      t[i] = (live >> (q + i) & 1) ? slot<T>(slots, q + i) : Op::template identity<T>();
    T r = Op::apply(Op::apply(t[0], t[2]), Op::apply(t[1], t[3]));
    for (uint i = 0; i < 4; ++i) set_slot(slots, q + i, r);
  }
}
template <class Op, class T>
MSL_FN T reduce_quad(T v, MSL_SITE_ARG) {
  mh_exchange(&v, sizeof(T), mh_lane(), &combine_quads<Op, T>, NEED_LIVE, MSL_HERE);
  return v;
}
MSL_UNCHECKED static void combine_ballot(void* slots, uint live) {
  uint r = 0;
  for (uint i = 0; i < 32; ++i)
    if (live >> i & 1) r |= (slot<uint>(slots, i) != 0 ? 1u : 0u) << i;
  for (uint i = 0; i < 32; ++i) set_slot(slots, i, r);
}
MSL_FN uint ballot(bool b, MSL_SITE_ARG) {
  uint v = b;
  mh_exchange(&v, sizeof(v), mh_lane(), &combine_ballot, NEED_LIVE, MSL_HERE);
  return v;
}

// ---- relaxed atomics; the order of the enumerators is that of runtime/abi.h
struct Add {
  static constexpr uint code = 3;
};
struct Sub {
  static constexpr uint code = 4;
};
struct And {
  static constexpr uint code = 5;
};
struct Or {
  static constexpr uint code = 6;
};
struct Xor {
  static constexpr uint code = 7;
};
struct Min {
  static constexpr uint code = 8;
};
struct Max {
  static constexpr uint code = 9;
};
template <class T>
constexpr uint atomic_type = same<T, float>   ? 2
                             : sizeof(T) == 8 ? 3
                             : sizeof(T) == 1 ? 4
                             : __is_signed(T) ? 1
                                              : 0;
template <class T>
MSL_FN ulong widen(T v) {
  return (ulong)bits<typename uint_of<sizeof(T)>::type>(v);
}
template <class T>
MSL_FN T narrow(ulong v) {
  return bits<T>((typename uint_of<sizeof(T)>::type)v);
}
template <class T, class P>
MSL_FN ulong call_atomic(P p, uint op, ulong value, ulong* expected = nullptr) {
  return mh_atomic((void*)(uintptr_t)p, op, atomic_type<T>, value, expected);
}
template <class T, class P>
MSL_FN T load(P p) {
  return narrow<T>(call_atomic<T>(p, 0, 0));
}
template <class T, class P>
MSL_FN void store(P p, T v) {
  call_atomic<T>(p, 1, widen(v));
}
template <class T, class P>
MSL_FN T exchange(P p, T v) {
  return narrow<T>(call_atomic<T>(p, 2, widen(v)));
}
template <class Op, class T, class P>
MSL_FN T rmw(P p, T v) {
  return narrow<T>(call_atomic<T>(p, Op::code, widen(v)));
}
template <class T, class P>
MSL_FN bool cas(P p, T& expected, T v) {
  ulong e = widen(expected);
  ulong old = call_atomic<T>(p, 10, widen(v), &e);
  bool ok = old == e;
  expected = narrow<T>(old);
  return ok;
}

// ---- 8x8 matrix product: a, b, c are the lane's two elements, in the layout of simdgroup_matrix.h
MSL_FN uint matrix_row(uint l) { return ((l >> 2) & 4) + ((l >> 1) & 3); }
MSL_FN uint matrix_col(uint l) { return ((l >> 2) & 2) * 2 + (l & 1) * 2; }
template <class A, class B, class C>
struct Operands {
  A a[2];
  B b[2];
  C c[2];
};
template <class A, class B, class C>
MSL_UNCHECKED static void combine_product(void* slots, uint) {
  float a[8][8], b[8][8], c[8][8];
  for (uint l = 0; l < 32; ++l) {
    auto v = slot<Operands<A, B, C>>(slots, l);
    for (uint i = 0, r = matrix_row(l), q = matrix_col(l); i < 2; ++i) {
      a[r][q + i] = (float)v.a[i];
      b[r][q + i] = (float)v.b[i];
      c[r][q + i] = (float)v.c[i];
    }
  }
  for (int i = 0; i < 8; ++i)
    for (int k = 0; k < 8; ++k)
      for (int j = 0; j < 8; ++j) c[i][j] += a[i][k] * b[k][j];
  for (uint l = 0; l < 32; ++l) {
    float t[2] = {c[matrix_row(l)][matrix_col(l)], c[matrix_row(l)][matrix_col(l) + 1]};
    __builtin_memcpy((char*)slots + SLOT * l, t, sizeof(t));
  }
}
template <class D, class A, class B, class C>
MSL_FN void multiply_accumulate(D (&d)[2], A a0, A a1, B b0, B b1, C c0, C c1, MSL_SITE_ARG) {
  union {
    Operands<A, B, C> in;
    float out[2];
  } v;
  v.in = {{a0, a1}, {b0, b1}, {c0, c1}};
  static_assert(sizeof(v) <= SLOT);
  mh_exchange(&v, sizeof(v), mh_lane(), &combine_product<A, B, C>, NEED_ALL, MSL_HERE);
  d[0] = (D)v.out[0];
  d[1] = (D)v.out[1];
}
}  // namespace msl::target
#include "launch_cpu.h"
