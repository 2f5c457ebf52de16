#include "layer.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/logical_not.h>

#include <cmath>

namespace tmf {
// One product on rows: a 3-D product with one token has been far slower than the same 2-D one.
std::vector<at::Tensor> Stages::linears(const at::Tensor& x, at::TensorList weights) const {
  const at::Tensor rows = x.reshape({x.size(0) * x.size(1), x.size(2)});
  std::vector<at::Tensor> products;
  for (const at::Tensor& weight : weights) {
    products.push_back(at::linear(rows, weight).view({x.size(0), x.size(1), weight.size(0)}));
  }
  return products;
}

Projected project(const at::Tensor& x, const LayerArgs& args, const Stages& stages) {
  const std::vector<at::Tensor> p = stages.linears(x, args.in_proj);
  if (p.size() == 4) return {p[0], p[1], p[2], p[3]};
  const auto parts = p[0].split_with_sizes(
      {args.conv_dim(), args.value_dim(), args.num_v_heads, args.num_v_heads}, -1);
  return {parts[0], parts[1], parts[2], parts[3]};
}

at::Tensor run_layer(const LayerArgs& args, const Stages& stages, const StatePair& conv,
                     const StatePair& recurrent) {
  const int64_t batch = args.hidden.size(0), tokens = args.hidden.size(1);
  at::Tensor x = args.hidden, dropped;
  if (args.mask.defined()) {
    // Selected, not multiplied: a padded token may hold anything, NaN included.
    dropped = at::logical_not(args.mask).unsqueeze(-1);
    x = x.masked_fill(dropped, 0);
  }
  if (args.input_norm_weight.defined()) {
    x = stages.rms_norm(x, args.input_norm_weight, args.eps);
  }

  Projected p = project(x, args, stages);
  const at::Tensor mixed =
      stages.causal_conv1d(p.qkv, args.conv_weight, args.mask, conv, /*silu=*/true);
  p.qkv.reset();  // the largest tensor of the call
  const auto qkv = mixed.split_with_sizes({args.key_dim(), args.key_dim(), args.value_dim()}, -1);
  const auto by_head = [&](const at::Tensor& t, int64_t heads, int64_t dim) {
    return t.unflatten(-1, {heads, dim});
  };
  const auto [g, beta] = stages.gates(p.a, p.b, args.A_log, args.dt_bias);
  const at::Tensor o = stages.gated_delta_rule(
      by_head(qkv[0], args.num_k_heads, args.head_k_dim),
      by_head(qkv[1], args.num_k_heads, args.head_k_dim),
      by_head(qkv[2], args.num_v_heads, args.head_v_dim), g, beta, args.mask, recurrent,
      args.head_map, 1.0 / std::sqrt(static_cast<double>(args.head_k_dim)), /*qk_l2norm=*/true);
  const at::Tensor normed = stages
                                .gated_rms_norm(o, by_head(p.z, args.num_v_heads, args.head_v_dim),
                                                args.norm_weight, args.eps)
                                .view({batch, tokens, args.value_dim()});

  at::Tensor output = stages.linears(normed, args.out_proj)[0];
  if (dropped.defined()) output.masked_fill_(dropped, 0);
  if (args.input_norm_weight.defined()) output.add_(args.hidden);
  return output;
}

}  // namespace tmf
