// The gradient of the gated delta rule.
#pragma once

#include "op_args.h"

namespace tmf::autograd {

// Where the gradients of the rule's inputs go: shapes of the inputs, any dtype and strides. Those
// of q, k, v may be the inputs' own memory.
struct RuleGradients {
  at::Tensor q, k, v, g, beta;
};

// Writes `out`, returns the gradient of the initial state (B, Hv, Dk, Dv), wide. The gradients of
// the output (B, T, Hv, Dv) and of the final state may be undefined: zeros. A masked token gets
// zeros.
at::Tensor rule_backward(const RuleArgs& args, const at::Tensor& grad_output,
                         const at::Tensor& grad_state, const RuleGradients& out);

}  // namespace tmf::autograd
