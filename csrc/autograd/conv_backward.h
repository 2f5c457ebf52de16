// The gradient of the causal convolution.
#pragma once

#include <tuple>

#include "op_args.h"

namespace tmf::autograd {

// Writes the gradient of x to `grad_x` (B, C, T), any dtype and strides, which may be the memory of
// `grad_output`. Returns those of the weight (C, K) and of the state before (B, C, W), wide; W is K
// without a state. The gradients of the output (B, C, T) and of the state after may be undefined:
// zeros. A masked token gets zeros.
std::tuple<at::Tensor, at::Tensor> conv_backward(const ConvArgs& args,
                                                 const at::Tensor& grad_output,
                                                 const at::Tensor& grad_state,
                                                 const at::Tensor& grad_x);

}  // namespace tmf::autograd
