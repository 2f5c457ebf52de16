// The kernels for x86-64 with AVX-512 (F, BW, DQ, VL).
#include "cpu/isa.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TMF_ISA avx512
#define TMF_LANES 16
#define TMF_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define TMF_TILE_VECTORS 2

#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")
#endif

#include "cpu/kernels_isa.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
