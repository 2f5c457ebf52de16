// Everything that is compiled once per instruction set. The including file defines TMF_ISA (a
// name), TMF_LANES (floats in a vector), TMF_FMA and TMF_TILE_VECTORS (vectors in a row of a state
// tile, as the registers allow).
#include "cpu/conv_isa.h"
#include "cpu/linear_isa.h"
#include "cpu/norm_isa.h"
#include "cpu/rule_decode_isa.h"
#include "cpu/rule_isa.h"
#include "cpu/simd.h"

#define TMF_QUOTE_(x) #x
#define TMF_QUOTE(x) TMF_QUOTE_(x)
#define TMF_JOIN_(a, b) a##b
#define TMF_JOIN(a, b) TMF_JOIN_(a, b)

namespace tmf::cpu {

const Isa TMF_JOIN(isa_, TMF_ISA) = {
    TMF_QUOTE(TMF_ISA),
    TMF_ISA::kColumns,
    TMF_ISA::rule_scratch,
    TMF_ISA::rule_any_dtype,
    TMF_ISA::conv_any_dtype,
    TMF_ISA::norm_any_dtype,
    TMF_ISA::linear_row_any_dtype,
};

}  // namespace tmf::cpu
