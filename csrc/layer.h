// The layer as a sequence of stages.
#pragma once

#include "op_args.h"
#include "stages.h"

namespace tmf {

// -> output (B, T, H); the states are left in `conv.out` and `recurrent.out`.
at::Tensor run_layer(const LayerArgs& args, const Stages& stages, const StatePair& conv,
                     const StatePair& recurrent);

}  // namespace tmf
