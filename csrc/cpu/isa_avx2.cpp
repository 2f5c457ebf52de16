// The kernels for x86-64 with AVX2 and FMA.
#include "cpu/isa.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TMF_ISA avx2
#define TMF_LANES 8
#define TMF_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define TMF_TILE_VECTORS 1

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

#include "cpu/kernels_isa.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
