// The target PTX, compute capability 9.0: see target.h for what a target provides.
//
// Scopes and orders are spelled in inline assembly, because clang's scoped atomics lose the scope
// on this target: loads and fences become .sys. Here
//   device atomics        are relaxed.gpu in .global
//   threadgroup atomics   are relaxed.cta in .shared
//   fences                are fence.sc for seq_cst and fence.acq_rel for the other orders, .cta for
//                         simdgroup and threadgroup scope (PTX has none narrower), .gpu, .sys
// coherent(device) needs nothing of its own: the fence that the language asks for between an access
// and its flag also orders plain accesses, and no load here is ld.global.nc.
//
// Simdgroup operations name all 32 lanes, so a threadgroup must be a multiple of 32 threads.
#pragma once
#define device __attribute__((opencl_global))
#define threadgroup __attribute__((opencl_local))
// what a constant pointer points to lives in global memory or in the launch's parameter; a space of
// its own, though all memory on this target, keeps clang's errors
#define constant const __attribute__((opencl_private))
#define thread
#define kernel
#define coherent(scope)

// true for the shader's own #ifdef: the place for the device's operand order (matrix_ptx.h)
#define MSL_GPU 1

// no reports on this target, so calls carry no place
#define MSL_SITE int msl_site = 0
#define MSL_SITE_ARG int msl_site
#define MSL_HERE msl_site

namespace msl::target {
#define MSL_LIBDEVICE1(n)              \
  extern "C" float __nv_##n##f(float); \
  MSL_FN float n(float x) { return __nv_##n##f(x); }
#define MSL_LIBDEVICE2(n)                     \
  extern "C" float __nv_##n##f(float, float); \
  MSL_FN float n(float x, float y) { return __nv_##n##f(x, y); }
MSL_LIBDEVICE1(exp)
MSL_LIBDEVICE1(exp2)
MSL_LIBDEVICE1(log)
MSL_LIBDEVICE1(log2)
MSL_LIBDEVICE1(log10)
MSL_LIBDEVICE1(sin)
MSL_LIBDEVICE1(cos)
MSL_LIBDEVICE1(tan)
MSL_LIBDEVICE1(asin)
MSL_LIBDEVICE1(acos)
MSL_LIBDEVICE1(atan)
MSL_LIBDEVICE1(sinh)
MSL_LIBDEVICE1(cosh)
MSL_LIBDEVICE1(tanh)
MSL_LIBDEVICE1(asinh)
MSL_LIBDEVICE1(acosh)
MSL_LIBDEVICE1(atanh)
MSL_LIBDEVICE1(erf)
MSL_LIBDEVICE2(pow)
MSL_LIBDEVICE2(atan2)
MSL_LIBDEVICE2(fmod)
MSL_LIBDEVICE2(nextafter)
#undef MSL_LIBDEVICE1
#undef MSL_LIBDEVICE2
extern "C" float __nv_ldexpf(float, int);
extern "C" float __nv_frexpf(float, int*);
// correctly rounded operations, as on the host
MSL_FN float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
MSL_FN float ldexp(float x, int n) { return __nv_ldexpf(x, n); }
MSL_FN float frexp(float x, int& e) { return __nv_frexpf(x, &e); }

// ---- barriers and fences; flags as metal::mem_flags, order and scope as their enumerators
enum { ORDER_RELAXED = 0, ORDER_SEQ_CST = 5 };
enum { SCOPE_THREAD = 0, SCOPE_DEVICE = 3, SCOPE_SYSTEM = 4 };
MSL_FN uint lane() { return __nvvm_read_ptx_sreg_laneid(); }
MSL_FN uint active_lanes() {
  uint mask;
  asm volatile("activemask.b32 %0;" : "=r"(mask));
  return mask;
}
// nanoseconds, of all multiprocessors alike
MSL_FN uint ticks() {
  ulong t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return (uint)t;
}
MSL_FN void barrier(uint, MSL_SITE_ARG) { __syncthreads(); }
MSL_FN void simd_barrier(uint, MSL_SITE_ARG) { __nvvm_bar_warp_sync(0xffffffffu); }
MSL_FN void fence(uint flags, uint order, uint scope) {
  if (flags == 0 || order == ORDER_RELAXED || scope == SCOPE_THREAD) {
    asm volatile("" ::: "memory");
  } else if (order == ORDER_SEQ_CST) {
    if (scope < SCOPE_DEVICE) asm volatile("fence.sc.cta;" ::: "memory");
    if (scope == SCOPE_DEVICE) asm volatile("fence.sc.gpu;" ::: "memory");
    if (scope == SCOPE_SYSTEM) asm volatile("fence.sc.sys;" ::: "memory");
  } else {
    if (scope < SCOPE_DEVICE) asm volatile("fence.acq_rel.cta;" ::: "memory");
    if (scope == SCOPE_DEVICE) asm volatile("fence.acq_rel.gpu;" ::: "memory");
    if (scope == SCOPE_SYSTEM) asm volatile("fence.acq_rel.sys;" ::: "memory");
  }
}

// ---- exchange between lanes, a word at a time
#define MSL_SHUFFLE(name, how)                                                            \
  template <class T>                                                                      \
  MSL_FN T name(T v, uint a) {                                                            \
    constexpr int words = (sizeof(T) + 3) / 4;                                            \
    int w[words] = {};                                                                    \
    __builtin_memcpy(w, &v, sizeof(T));                                                   \
    for (int i = 0; i < words; ++i) w[i] = __nvvm_shfl_sync_##how##_i32(-1, w[i], a, 31); \
    __builtin_memcpy(&v, w, sizeof(T));                                                   \
    return v;                                                                             \
  }
MSL_SHUFFLE(from_lane, idx)
MSL_SHUFFLE(butterfly, bfly)
#undef MSL_SHUFFLE
// v of lane `source`; a source beyond the simdgroup keeps the own value
template <class T>
MSL_FN T shuffle(T v, uint source, MSL_SITE_ARG) {
  return from_lane(v, source < 32 ? source : lane());
}
// the same tree as on the host, so the same bits
template <class Op, class T>
MSL_FN T reduce(T v, MSL_SITE_ARG) {
  for (uint o = 16; o; o >>= 1) v = Op::apply(v, butterfly(v, o));
  return v;
}
template <class Op, class T>
MSL_FN T reduce_quad(T v, MSL_SITE_ARG) {
  for (uint o = 2; o; o >>= 1) v = Op::apply(v, butterfly(v, o));
  return v;
}
// a tree, where the host goes lane by lane: floating-point sums may differ in their last bits
template <class Op, bool Inclusive, class T>
MSL_FN T scan(T v, MSL_SITE_ARG) {
  const uint l = lane();
  for (uint o = 1; o < 32; o <<= 1) {
    T below = from_lane(v, l < o ? l : l - o);
    if (l >= o) v = Op::apply(below, v);
  }
  if constexpr (Inclusive) return v;
  T before = from_lane(v, l ? l - 1 : 0);
  return l ? before : Op::template identity<T>();
}
MSL_FN uint ballot(bool b, MSL_SITE_ARG) { return __nvvm_vote_ballot_sync(0xffffffffu, b); }

// ---- relaxed atomics
template <class P>
struct is_device {
  static constexpr bool value = false;
};
template <class T>
struct is_device<device T*> {
  static constexpr bool value = true;
};
// One instruction in either space; TEXT %0 is the result, %1 the address, %2 the operand.
#define MSL_ATOM(P, op, suffix, out, p, ...)                                                     \
  do {                                                                                           \
    if constexpr (is_device<P>::value)                                                           \
      asm volatile("atom.relaxed.gpu.global." op suffix : out : "l"(p), __VA_ARGS__ : "memory"); \
    else                                                                                         \
      asm volatile("atom.relaxed.cta.shared." op suffix : out : "l"(p), __VA_ARGS__ : "memory"); \
  } while (0)
#define MSL_LOAD(P, type, out, p)                                                         \
  do {                                                                                    \
    if constexpr (is_device<P>::value)                                                    \
      asm volatile("ld.relaxed.gpu.global." type " %0, [%1];" : out : "l"(p) : "memory"); \
    else                                                                                  \
      asm volatile("ld.relaxed.cta.shared." type " %0, [%1];" : out : "l"(p) : "memory"); \
  } while (0)
#define MSL_STORE(P, type, p, in)                                                       \
  do {                                                                                  \
    if constexpr (is_device<P>::value)                                                  \
      asm volatile("st.relaxed.gpu.global." type " [%0], %1;" ::"l"(p), in : "memory"); \
    else                                                                                \
      asm volatile("st.relaxed.cta.shared." type " [%0], %1;" ::"l"(p), in : "memory"); \
  } while (0)

template <class T, class P>
MSL_FN T load(P p) {
  if constexpr (sizeof(T) == 8) {
    ulong r;
    MSL_LOAD(P, "b64", "=l"(r), p);
    return bits<T>(r);
  } else {
    uint r;
    if constexpr (sizeof(T) == 1)
      MSL_LOAD(P, "u8", "=r"(r), p);
    else
      MSL_LOAD(P, "b32", "=r"(r), p);
    return bits<T>((typename uint_of<sizeof(T)>::type)r);
  }
}
template <class T, class P>
MSL_FN void store(P p, T v) {
  if constexpr (sizeof(T) == 8)
    MSL_STORE(P, "b64", p, "l"(bits<ulong>(v)));
  else if constexpr (sizeof(T) == 1)
    MSL_STORE(P, "u8", p, "r"((uint)bits<uchar>(v)));
  else
    MSL_STORE(P, "b32", p, "r"(bits<uint>(v)));
}
template <class T, class P>
MSL_FN T exchange(P p, T v) {
  static_assert(sizeof(T) == 4, "atomic exchange: PTX has it for 32-bit types only");
  uint r;
  MSL_ATOM(P, "exch.b32", " %0, [%1], %2;", "=r"(r), p, "r"(bits<uint>(v)));
  return bits<T>(r);
}
template <class T, class P>
MSL_FN bool cas(P p, T& expected, T v) {
  static_assert(sizeof(T) == 4, "atomic compare-exchange: PTX has it for 32-bit types only");
  const uint want = bits<uint>(expected);
  uint r;
  MSL_ATOM(P, "cas.b32", " %0, [%1], %2, %3;", "=r"(r), p, "r"(want), "r"(bits<uint>(v)));
  expected = bits<T>(r);
  return r == want;
}
struct Add {};
struct Sub {};
struct And {};
struct Or {};
struct Xor {};
struct Min {};
struct Max {};
#define MSL_RMW32(text) MSL_ATOM(P, text, " %0, [%1], %2;", "=r"(r), p, "r"(bits<uint>(v)))
#define MSL_RMW64(text) MSL_ATOM(P, text, " %0, [%1], %2;", "=l"(r), p, "l"(bits<ulong>(v)))
template <class Op, class T, class P>
MSL_FN T rmw(P p, T v) {
  constexpr bool is_signed = __is_signed(T);
  if constexpr (same<Op, Sub>) {
    return rmw<Add, T>(p, (T)-v);
  } else if constexpr (same<T, float>) {
    static_assert(same<Op, Add>, "atomic_float has fetch_add and fetch_sub");
    float r;
    MSL_ATOM(P, "add.f32", " %0, [%1], %2;", "=f"(r), p, "f"(v));
    return r;
  } else if constexpr (sizeof(T) == 8) {
    ulong r;
    if constexpr (same<Op, Min>) MSL_RMW64("min.u64");
    if constexpr (same<Op, Max>) MSL_RMW64("max.u64");
    static_assert(same<Op, Min> || same<Op, Max>, "atomic_ulong has minimum and maximum only");
    return r;
  } else {
    static_assert(sizeof(T) == 4, "atomic operation on a type that PTX has not");
    uint r;
    if constexpr (same<Op, Add>) MSL_RMW32("add.u32");
    if constexpr (same<Op, And>) MSL_RMW32("and.b32");
    if constexpr (same<Op, Or>) MSL_RMW32("or.b32");
    if constexpr (same<Op, Xor>) MSL_RMW32("xor.b32");
    if constexpr (same<Op, Min> && is_signed) MSL_RMW32("min.s32");
    if constexpr (same<Op, Min> && !is_signed) MSL_RMW32("min.u32");
    if constexpr (same<Op, Max> && is_signed) MSL_RMW32("max.s32");
    if constexpr (same<Op, Max> && !is_signed) MSL_RMW32("max.u32");
    return bits<T>(r);
  }
}
}  // namespace msl::target
#include "launch_ptx.h"
#include "matrix_ptx.h"
