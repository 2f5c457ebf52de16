#include "autograd/norms_backward.h"

#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softplus.h>

#include "stock/tools.h"

namespace tmf::autograd {
namespace {

using at::Tensor;

Tensor mean_last(const Tensor& t) { return t.mean(-1, /*keepdim=*/true); }

// Sums over all dims but the last.
Tensor sum_rows(const Tensor& t) { return t.reshape({-1, t.size(-1)}).sum(0); }

// x scale = u with mean(u^2) = 1 but for eps: the gradient of x, given that of u.
Tensor normalised_backward(const Tensor& u, const Tensor& scale, const Tensor& d_u) {
  return d_u.sub(u.mul(mean_last(u.mul(d_u)))).mul_(scale);
}

}  // namespace

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& x, const Tensor& weight, double eps,
                                             const Tensor& grad) {
  const Tensor scale = at::rsqrt(mean_last(x.square()).add_(eps)), u = x.mul(scale);
  return {normalised_backward(u, scale, grad.mul(weight.add(1))), sum_rows(grad.mul(u))};
}

GatedNormGradients gated_rms_norm_backward(const Tensor& o, const Tensor& z, const Tensor& weight,
                                           double eps, const Tensor& grad) {
  const Tensor scale = at::rsqrt(mean_last(o.square()).add_(eps)), u = o.mul(scale);
  const Tensor s = at::sigmoid(z), gate = z.mul(s), d_gated = grad.mul(u);
  // silu'(z) = s + z s (1 - s)
  const Tensor d_z = gate.mul(s.neg().add_(1)).add_(s).mul_(d_gated).mul_(weight);
  const Tensor d_weight = sum_rows(d_gated.mul_(gate));
  return {normalised_backward(u, scale, grad.mul(weight).mul_(gate)), d_z, d_weight};
}

GateGradients gates_backward(const Tensor& a, const Tensor& b, const Tensor& A_log,
                             const Tensor& dt_bias, const Tensor& grad_g, const Tensor& grad_beta) {
  const Tensor x = a.add(dt_bias), rate = A_log.exp(), s = at::sigmoid(b);
  const Tensor d_step = grad_g.mul(rate).neg_();
  // A gate whose gradient is zero (the state is forgotten) gives zero, infinite rates too.
  const auto unless_zero = [&](const Tensor& t) { return t.masked_fill(grad_g.eq(0), 0); };
  // softplus returns its argument above the threshold
  const Tensor slope = at::sigmoid(x).masked_fill_(x.gt(stock::kSoftplusThreshold), 1);
  const Tensor d_a = unless_zero(d_step.mul(slope));
  const Tensor d_A_log =
      unless_zero(d_step.mul(at::softplus(x, /*beta=*/1, stock::kSoftplusThreshold)));
  return {d_a, grad_beta.mul(s).mul_(s.neg().add_(1)), sum_rows(d_A_log), sum_rows(d_a)};
}

}  // namespace tmf::autograd
