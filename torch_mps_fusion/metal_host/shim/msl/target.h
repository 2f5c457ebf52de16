// Picks the target. A target header provides:
//   device threadgroup constant thread coherent(x)    address spaces
//   MSL_SITE, MSL_SITE_ARG, MSL_HERE                  the place of a call, carried to reports
//   msl::target::exp(float) ...                       elementary functions in fp32
//   msl::target::lane(), barrier, simd_barrier, fence, ticks
//   msl::target::shuffle, reduce<Op>, scan<Op>, ballot    exchange between lanes
//   msl::target::load, store, exchange, cas, rmw<Op>      relaxed atomics
//   msl::target::multiply_accumulate                  8x8 matrix product of a simdgroup
//   MSL_THREADGROUP(name), msl::Dv Cv Tv, MSL_BUILTIN(name)   parameters and variables of kernels
#pragma once
#ifdef __NVPTX__
#include "target_ptx.h"
#else
#include "target_cpu.h"
#endif
