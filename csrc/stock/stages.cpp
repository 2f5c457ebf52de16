// The stages in aten ops: what PyTorch does without our kernels, on any device.
#include "stages.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/zeros.h>

#include "stock/rule.h"
#include "stock/tools.h"

namespace tmf {
namespace {

using stock::Compressed, stock::compress, stock::widened, stock::gather_tokens;

at::Tensor inverse_rms(const at::Tensor& x, double eps) {
  return at::rsqrt(x.square().mean(-1, /*keepdim=*/true).add_(eps));
}

// x (B, T, C), history (B, C, W) -> y (B, T, C), fp32 sums over the window in order of age.
at::Tensor convolve(const at::Tensor& window, const at::Tensor& weight, int64_t tokens, bool silu) {
  const int64_t width = weight.size(1);
  const int64_t first = window.size(2) - tokens - (width - 1);
  const at::Tensor w = widened(weight);
  at::Tensor sum;
  for (int64_t j = 0; j < width; ++j) {
    const at::Tensor term = widened(window.narrow(2, first + j, tokens)).mul(w.narrow(1, j, 1));
    sum = j == 0 ? term : sum.add_(term);
  }
  at::Tensor y = sum.to(window.scalar_type());
  if (silu) y = at::silu(widened(y)).to(y.scalar_type());
  return y.transpose(1, 2);
}

class StockStages final : public Stages {
 public:
  at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) const override {
    const at::Tensor wide = widened(x);
    return wide.mul(inverse_rms(wide, eps)).mul_(widened(weight).add(1)).to(x.scalar_type());
  }

  at::Tensor causal_conv1d(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& mask,
                           const StatePair& state, bool silu) const override {
    const int64_t tokens = x.size(1), width = state.out.size(2);
    const at::Tensor history =
        state.in.defined() ? state.in : at::zeros({x.size(0), x.size(2), width}, x.options());
    if (tokens == 0) {
      state.out.copy_(history);
      return x.clone();
    }
    if (!mask.defined()) {
      const at::Tensor window = at::cat({history, x.transpose(1, 2)}, 2);
      const at::Tensor y = convolve(window, weight, tokens, silu);
      state.out.copy_(window.narrow(2, tokens, width));
      return y.contiguous();
    }
    const Compressed c = compress(mask);
    const at::Tensor window = at::cat({history, gather_tokens(x, c.source).transpose(1, 2)}, 2);
    const at::Tensor y = gather_tokens(convolve(window, weight, tokens, silu), c.place);
    const at::Tensor last = c.count.add(at::arange(width, c.count.options()));
    state.out.copy_(window.gather(2, last.unsqueeze(1).expand({-1, window.size(1), -1})));
    return y.masked_fill(mask.logical_not().unsqueeze(-1), 0);
  }

  std::tuple<at::Tensor, at::Tensor> gates(const at::Tensor& a, const at::Tensor& b,
                                           const at::Tensor& A_log,
                                           const at::Tensor& dt_bias) const override {
    const at::Tensor step =
        at::softplus(widened(a).add(widened(dt_bias)), /*beta=*/1, /*threshold=*/20);
    return {step.mul_(widened(A_log).exp().neg_()), widened(at::sigmoid(b))};
  }

  at::Tensor gated_delta_rule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const at::Tensor& g, const at::Tensor& beta, const at::Tensor& mask,
                              const StatePair& state, HeadMap head_map, double scale,
                              bool qk_l2norm) const override {
    return stock::gated_delta_rule(q, k, v, g, beta, mask, state, head_map, scale, qk_l2norm);
  }

  at::Tensor gated_rms_norm(const at::Tensor& o, const at::Tensor& z, const at::Tensor& weight,
                            double eps) const override {
    const at::Tensor wide = widened(o);
    const at::Tensor normed =
        widened(weight.mul(wide.mul(inverse_rms(wide, eps)).to(o.scalar_type())));
    return normed.mul(at::silu(widened(z))).to(o.scalar_type()).contiguous();
  }
};

}  // namespace

const Stages& stock_stages() {
  static const StockStages stages;
  return stages;
}

}  // namespace tmf
