// The gradients of the layer's small stages, on wide tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace tmf::autograd {

// y = x / rms(x) (1 + weight) -> gradients of x (.., H) and weight (H)
std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& x, const at::Tensor& weight,
                                                     double eps, const at::Tensor& grad);

struct GatedNormGradients {
  at::Tensor o, z, weight;  // (.., Dv) twice, (Dv)
};

// y = weight (o / rms(o)) silu(z)
GatedNormGradients gated_rms_norm_backward(const at::Tensor& o, const at::Tensor& z,
                                           const at::Tensor& weight, double eps,
                                           const at::Tensor& grad);

struct GateGradients {
  at::Tensor a, b, A_log, dt_bias;  // (B, T, Hv) twice, (Hv) twice
};

// g = -exp(A_log) softplus(a + dt_bias), beta = sigmoid(b)
GateGradients gates_backward(const at::Tensor& a, const at::Tensor& b, const at::Tensor& A_log,
                             const at::Tensor& dt_bias, const at::Tensor& grad_g,
                             const at::Tensor& grad_beta);

}  // namespace tmf::autograd
