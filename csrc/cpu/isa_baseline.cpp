// The kernels for the instruction set that every processor of this architecture has.
#include "cpu/isa.h"

#define TMF_ISA baseline
#define TMF_LANES 4
#if defined(__aarch64__)
#include <arm_neon.h>
#define TMF_FMA(a, b, c) vfmaq_f32(c, a, b)
#define TMF_TILE_VECTORS 2
#else
// Without the instruction, a fused multiply-add would be a library call.
#define TMF_FMA(a, b, c) ((a) * (b) + (c))
#define TMF_TILE_VECTORS 1
#endif

#include "cpu/kernels_isa.h"
