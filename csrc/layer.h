// The layer as a sequence of stages.
#pragma once

#include "op_args.h"
#include "stages.h"

namespace tmf {

struct Projected {
  at::Tensor qkv, z, b, a;  // (B, T, conv_dim), (B, T, value_dim), (B, T, Hv) twice
};

// The input projection of x (B, T, H), on weights in rows.
Projected project(const at::Tensor& x, const LayerArgs& args, const Stages& stages);

// -> output (B, T, H); the states are left in `conv.out` and `recurrent.out`.
at::Tensor run_layer(const LayerArgs& args, const Stages& stages, const StatePair& conv,
                     const StatePair& recurrent);

}  // namespace tmf
