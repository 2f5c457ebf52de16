// How instances are named and chosen. A host that needs one kernel defines what its name says and
// compiles only that: TMF_IO (16 half, 17 bfloat, 32 float), TMF_DK, TMF_DV, TMF_NT, TMF_U.
// Undefined or 0: all of them.
#pragma once
#include "math.h"

#ifndef TMF_IO
#define TMF_IO 0
#endif
#ifndef TMF_DK
#define TMF_DK 0
#endif
#ifndef TMF_DV
#define TMF_DV 0
#endif
#ifndef TMF_NT
#define TMF_NT 0
#endif
#ifndef TMF_U
#define TMF_U 0
#endif
#define TMF_DIMS(dk, dv) ((TMF_DK == 0 || TMF_DK == dk) && (TMF_DV == 0 || TMF_DV == dv))
#define TMF_TILES(nt, u) ((TMF_NT == 0 || TMF_NT == nt) && (TMF_U == 0 || TMF_U == u))

#define TMF_KERNEL(op, io, tile, function, ...)                    \
  template [[host_name("tmf_" op "_" io "_f32_" tile)]] [[kernel]] \
  decltype(function<__VA_ARGS__>) function<__VA_ARGS__>;
#if TMF_IO == 16
#define TMF_KERNELS(op, tile, function, ...) \
  TMF_KERNEL(op, "f16", tile, function, half, __VA_ARGS__)
#elif TMF_IO == 17
#define TMF_KERNELS(op, tile, function, ...) \
  TMF_KERNEL(op, "bf16", tile, function, bfloat, __VA_ARGS__)
#elif TMF_IO == 32
#define TMF_KERNELS(op, tile, function, ...) \
  TMF_KERNEL(op, "f32", tile, function, float, __VA_ARGS__)
#else
#define TMF_KERNELS(op, tile, function, ...)                  \
  TMF_KERNEL(op, "f16", tile, function, half, __VA_ARGS__)    \
  TMF_KERNEL(op, "bf16", tile, function, bfloat, __VA_ARGS__) \
  TMF_KERNEL(op, "f32", tile, function, float, __VA_ARGS__)
#endif
