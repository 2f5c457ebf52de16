// The gradient of gdn_layer.
#pragma once

#include <vector>

#include "op_args.h"
#include "stages.h"

namespace tmf::autograd {

struct LayerGradientsIn {
  at::Tensor output, conv_state, recurrent_state;  // of the results; each may be undefined: zeros
};

// The tensors of a call that have a gradient, in the order of the schema: hidden, in_proj ..,
// conv_weight, A_log, dt_bias, norm_weight, out_proj .., input_norm_weight, conv_state,
// recurrent_state. Those that were not given are undefined.
std::vector<at::Tensor> differentiable(const LayerArgs& args);

// Gradients of differentiable(args), each in its tensor's dtype; undefined where `needed` is false.
// Weights are in rows. The layer is computed again by `stages`, up to the output projection.
std::vector<at::Tensor> layer_backward(const LayerArgs& args, const Stages& stages,
                                       const LayerGradientsIn& grads,
                                       const std::vector<bool>& needed);

}  // namespace tmf::autograd
