// Vectors of TMF_LANES floats by compiler extensions: the same lines for every instruction set.
// Included once per set, inside its target; nothing here or in what includes it may use an inline
// function of the standard library.
#pragma once

#include <cstdint>

#include "cpu/isa.h"

#define TMF_INLINE static inline __attribute__((always_inline))

namespace tmf::cpu::TMF_ISA {

constexpr int kLanes = TMF_LANES;

typedef float vf __attribute__((vector_size(kLanes * 4)));
typedef int32_t vi __attribute__((vector_size(kLanes * 4)));
typedef uint32_t vu __attribute__((vector_size(kLanes * 4)));
typedef uint16_t vh __attribute__((vector_size(kLanes * 2)));

TMF_INLINE vf splat(float x) { return x - vf{}; }
TMF_INLINE vf fma(vf a, vf b, vf c) { return TMF_FMA(a, b, c); }

template <class V>
TMF_INLINE V load_raw(const void* p) {
  V x;
  __builtin_memcpy(&x, p, sizeof(V));
  return x;
}
template <class V>
TMF_INLINE void store_raw(void* p, V x) {
  __builtin_memcpy(p, &x, sizeof(V));
}
TMF_INLINE vf load(const float* p) { return load_raw<vf>(p); }
TMF_INLINE void store(float* p, vf x) { store_raw(p, x); }

// Interleaves the low halves, or the high halves, of two vectors.
#if TMF_LANES == 4
#define TMF_LOW 0, 4, 1, 5
#define TMF_HIGH 2, 6, 3, 7
#elif TMF_LANES == 8
#define TMF_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define TMF_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define TMF_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define TMF_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#endif
#if defined(__clang__) || __GNUC__ >= 12
TMF_INLINE vf zip_low(vf a, vf b) { return __builtin_shufflevector(a, b, TMF_LOW); }
TMF_INLINE vf zip_high(vf a, vf b) { return __builtin_shufflevector(a, b, TMF_HIGH); }
#else
TMF_INLINE vf zip_low(vf a, vf b) { return __builtin_shuffle(a, b, vi{TMF_LOW}); }
TMF_INLINE vf zip_high(vf a, vf b) { return __builtin_shuffle(a, b, vi{TMF_HIGH}); }
#endif

// Transposes a square of vectors: log2(kLanes) rounds of interleaving row i with row i + kLanes
// / 2.
TMF_INLINE void transpose(vf (&rows)[kLanes]) {
  constexpr int half = kLanes / 2;
  vf next[kLanes];
#pragma GCC unroll 4
  for (int round = 1; round < kLanes; round *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < half; ++i) {
      next[2 * i] = zip_low(rows[i], rows[i + half]);
      next[2 * i + 1] = zip_high(rows[i], rows[i + half]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) rows[i] = next[i];
  }
}

// Lane i of the result is the sum of the lanes of rows[i], by a fixed tree.
TMF_INLINE vf sum_rows(vf (&rows)[kLanes]) {
#pragma GCC unroll 4
  for (int half = kLanes / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < half; ++i) {
      rows[i] = zip_low(rows[i], rows[i + half]) + zip_high(rows[i], rows[i + half]);
    }
  }
  return rows[0];
}

TMF_INLINE float sum(vf x) {
#pragma GCC unroll 4
  for (int half = kLanes / 2; half > 0; half /= 2) x = zip_low(x, x) + zip_high(x, x);
  return x[0];
}

// Element types: how memory becomes a vector of floats and back. round() is both ways.
struct F32 {
  typedef float type;
  TMF_INLINE vf load(const float* p) { return load_raw<vf>(p); }
  TMF_INLINE void store(float* p, vf x) { store_raw(p, x); }
  TMF_INLINE vf round(vf x) { return x; }
};

struct BF16 {
  typedef uint16_t type;
  TMF_INLINE vf widen(vh x) { return (vf)(__builtin_convertvector(x, vu) << 16); }
  // Round to nearest even; a NaN stays one.
  TMF_INLINE vu bits(vf x) {
    const vu u = (vu)x;
    const vu rounded = u + (0x7fffu + ((u >> 16) & 1u));
    return (vu)(x == x ? (vi)rounded : (vi)(u | 0x400000u));
  }
  TMF_INLINE vf load(const uint16_t* p) { return widen(load_raw<vh>(p)); }
  TMF_INLINE void store(uint16_t* p, vf x) {
    store_raw(p, __builtin_convertvector(bits(x) >> 16, vh));
  }
  TMF_INLINE vf round(vf x) { return (vf)(bits(x) & 0xffff0000u); }
};

struct F16 {
  typedef uint16_t type;
  TMF_INLINE vf widen(vh x) {
    const vu h = __builtin_convertvector(x, vu);
    const vu shifted = (h & 0x7fffu) << 13;
    // 2^112 moves the exponent's bias, and normalises subnormal numbers.
    const vu finite = (vu)((vf)shifted * 0x1p112f);
    const vi special = (vi)(h & 0x7fffu) >= 0x7c00;
    return (vf)((vu)(special ? (vi)(shifted | 0x7f800000u) : (vi)finite) | ((h & 0x8000u) << 16));
  }
  // Round to nearest even; beyond 65,520 infinite; a NaN stays one.
  TMF_INLINE vu bits(vf x) {
    const vu u = (vu)x;
    const vu magnitude = u & 0x7fffffffu;
    const vi m = (vi)magnitude;
    // Adding 0.5 puts the last bit of a subnormal half at the last bit of the float.
    const vi tiny = (vi)((vf)magnitude + 0.5f) - 0x3f000000;
    const vi normal = (vi)((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13);
    const vi special = m > 0x7f800000 ? (vi{} + 0x7e00) : (vi{} + 0x7c00);
    const vi finite = m < 0x38800000 ? tiny : normal;
    return (vu)(m >= 0x47800000 ? special : finite) | ((u >> 16) & 0x8000u);
  }
  TMF_INLINE vf load(const uint16_t* p) { return widen(load_raw<vh>(p)); }
  TMF_INLINE void store(uint16_t* p, vf x) { store_raw(p, __builtin_convertvector(bits(x), vh)); }
  TMF_INLINE vf round(vf x) { return widen(__builtin_convertvector(bits(x), vh)); }
};

// One element, by way of a vector.
template <class T>
TMF_INLINE float load_one(const typename T::type* p) {
  typename T::type lanes[kLanes] = {*p};
  return T::load(lanes)[0];
}
template <>
inline __attribute__((always_inline)) float load_one<F32>(const float* p) {
  return *p;
}
// exp to about 1 ulp: 2^k times a Taylor polynomial on [-ln2/2, ln2/2]. Below 2.5e-38 zero.
TMF_INLINE vf exp(vf x) {
  const vf lowest = splat(-86.6f), highest = splat(88.8f);
  const vf round = splat(12582912.0f);  // 1.5 * 2^23: the sum's low bits are the nearest integer
  vf clamped = x < lowest ? lowest : x;
  clamped = clamped > highest ? highest : clamped;
  const vf shifted = fma(clamped, splat(1.44269504f), round);
  const vf k = shifted - round;
  vf r = fma(k, splat(-0.693359375f), clamped);
  r = fma(k, splat(2.12194440e-4f), r);
  vf p = splat(1.0f / 5040);
  p = fma(p, r, splat(1.0f / 720));
  p = fma(p, r, splat(1.0f / 120));
  p = fma(p, r, splat(1.0f / 24));
  p = fma(p, r, splat(1.0f / 6));
  p = fma(p, r, splat(0.5f));
  p = fma(p, r, splat(1.0f));
  p = fma(p, r, splat(1.0f));
  // k may be 128: half of the scale first.
  const vi half_scale = ((vi)shifted - (vi)round + 126) << 23;
  const vf result = (p * (vf)half_scale) * 2.0f;
  return x < lowest ? vf{} : result;
}

TMF_INLINE vf silu(vf x) { return x / (1.0f + exp(-x)); }

}  // namespace tmf::cpu::TMF_ISA
