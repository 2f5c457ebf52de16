// The backward ops: one op for each functional one, so that a compiled graph holds one node for any
// number of tokens. They differentiate the formulas without the roundings between stages, at the
// rounded values, in float32 (float64 for float64 arguments, which only these ops take).
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "autograd/conv_backward.h"
#include "autograd/layer_backward.h"
#include "autograd/rule_backward.h"
#include "errors.h"
#include "packed_weight.h"
#include "parse_args.h"
#include "stages.h"
#include "stock/tools.h"

namespace tmf {
namespace {

using at::Tensor;

// A gradient has the shape and the device of what it is the gradient of.
void check_gradient(const char* op, const char* name, const Tensor& grad, c10::SymIntArrayRef sizes,
                    const Tensor& reference) {
  if (!grad.defined()) return;
  if (grad.device() != reference.device()) {
    refuse(op, name, text("device ", grad.device()), text("device ", reference.device()));
  }
  if (grad.requires_grad() && at::GradMode::is_enabled()) {
    refuse(op, name, "a tensor that requires grad", "first derivatives only");
  }
  bool equal = grad.dim() == static_cast<int64_t>(sizes.size());
  for (size_t i = 0; equal && i < sizes.size(); ++i) {
    equal = grad.sym_size(i).sym_eq(sizes[i]).expect_true(__FILE__, __LINE__);
  }
  if (!equal) refuse(op, name, text("shape ", grad.sym_sizes()), text("shape ", sizes));
}

Tensor like(const Tensor& t) { return at::empty_symint(t.sym_sizes(), t.options()); }

at::TensorOptions wide_options(const Tensor& t) { return t.options().dtype(stock::wide_type(t)); }

// --------------------------------------------------------------------------- gated_delta_rule

template <bool fake>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> gated_delta_rule_backward(
    const OptTensor& grad_output, const OptTensor& grad_state, const Tensor& q, const Tensor& k,
    const Tensor& v, const Tensor& g, const Tensor& beta, const OptTensor& state,
    const OptTensor& mask, Text head_map, std::optional<double> scale, bool qk_l2norm) {
  const char* op = "_gated_delta_rule_backward";
  const RuleArgs args = rule_args(op, q, k, v, g, beta, or_undefined(state), mask, head_map, scale,
                                  qk_l2norm, "auto", Call::backward);
  const std::vector<c10::SymInt> state_sizes{q.sym_size(0), v.sym_size(2), q.sym_size(3),
                                             v.sym_size(3)};
  const Tensor d_output = or_undefined(grad_output), d_after = or_undefined(grad_state);
  check_gradient(op, "grad_output", d_output, v.sym_sizes(), q);
  check_gradient(op, "grad_state", d_after, state_sizes, q);
  const autograd::RuleGradients out{like(q), like(k), like(v), like(g), like(beta)};
  const Tensor d_state = [&] {
    if constexpr (fake) return at::empty_symint(state_sizes, wide_options(q));
    return autograd::rule_backward(args, d_output, d_after, out);
  }();
  return {out.q, out.k, out.v, out.g, out.beta, d_state};
}

// ------------------------------------------------------------------------------ causal_conv1d

template <bool fake>
std::tuple<Tensor, Tensor, Tensor> causal_conv1d_backward(const OptTensor& grad_output,
                                                          const OptTensor& grad_state,
                                                          const Tensor& x, const Tensor& weight,
                                                          const OptTensor& state,
                                                          const OptTensor& mask,
                                                          std::optional<Text> activation) {
  const char* op = "_causal_conv1d_backward";
  const ConvArgs args =
      conv_args(op, x, weight, or_undefined(state), mask, activation, "auto", Call::backward);
  const c10::SymInt width = args.state.defined() ? args.state.sym_size(2) : weight.sym_size(1);
  const std::vector<c10::SymInt> state_sizes{x.sym_size(0), x.sym_size(1), width};
  const Tensor d_output = or_undefined(grad_output), d_after = or_undefined(grad_state);
  check_gradient(op, "grad_output", d_output, x.sym_sizes(), x);
  check_gradient(op, "grad_state", d_after, state_sizes, x);
  const Tensor d_x = like(x);
  if constexpr (fake) return {d_x, like(weight), at::empty_symint(state_sizes, x.options())};
  const auto [d_weight, d_state] = autograd::conv_backward(args, d_output, d_after, d_x);
  return {d_x, d_weight.to(weight.scalar_type()), d_state.to(x.scalar_type())};
}

// ---------------------------------------------------------------------------------- gdn_layer

// What computes the layer again: the shader variants have no backward of their own.
const Stages& forward_stages(const char* op, const LayerArgs& a) {
  if (a.hidden.scalar_type() == at::kDouble) return stock_stages();
  const bool shaders = a.weight_format != "rows";
  const Capability capability{a.hidden.device().type(), a.hidden.scalar_type(), a.head_k_dim,
                              a.head_v_dim, a.conv_weight.size(1)};
  const Variant variant = resolve(op, shaders ? Variant::automatic : a.variant, capability);
  return variant == Variant::native ? native_stages() : stock_stages();
}

void unpack_weights(LayerArgs& a) {
  if (a.weight_format == "rows") return;
  const auto lanes = lanes_of(a.weight_format);
  const auto rows = [&](const Tensor& packed, int64_t n, int64_t k) {
    const Tensor all = at::empty({packed.numel() / k, k}, packed.options());
    unpack(packed, lanes, all);
    return all.narrow(0, 0, n);
  };
  const int64_t hidden = a.hidden.size(2);
  const int64_t columns = a.conv_dim() + a.value_dim() + 2 * a.num_v_heads;
  a.in_proj = {rows(a.in_proj[0], columns, hidden)};
  a.out_proj = {rows(a.out_proj[0], hidden, a.value_dim())};
}

template <bool fake>
std::vector<Tensor> gdn_layer_backward(
    const OptTensor& grad_output, const OptTensor& grad_conv_state,
    const OptTensor& grad_recurrent_state, c10::List<bool> needed, const Tensor& hidden,
    at::TensorList in_proj, const Tensor& conv_weight, const Tensor& A_log, const Tensor& dt_bias,
    const Tensor& norm_weight, at::TensorList out_proj, const OptTensor& input_norm_weight,
    const OptTensor& conv_state, const OptTensor& recurrent_state, const OptTensor& mask,
    int64_t num_k_heads, int64_t num_v_heads, int64_t head_k_dim, int64_t head_v_dim, Text head_map,
    Text weight_format, double eps, Text variant) {
  const char* op = "_gdn_layer_backward";
  LayerArgs args =
      layer_args(op, hidden, in_proj, conv_weight, A_log, dt_bias, norm_weight, out_proj,
                 input_norm_weight, conv_state, recurrent_state, mask, num_k_heads, num_v_heads,
                 head_k_dim, head_v_dim, head_map, weight_format, eps, variant, Call::backward);
  const c10::SymInt batch = hidden.sym_size(0);
  const c10::SymInt width =
      args.conv_state.defined() ? args.conv_state.sym_size(2) : conv_weight.sym_size(1);
  const autograd::LayerGradientsIn grads{or_undefined(grad_output), or_undefined(grad_conv_state),
                                         or_undefined(grad_recurrent_state)};
  check_gradient(op, "grad_output", grads.output, hidden.sym_sizes(), hidden);
  check_gradient(op, "grad_conv_state", grads.conv_state,
                 std::vector<c10::SymInt>{batch, args.conv_dim(), width}, hidden);
  check_gradient(op, "grad_recurrent_state", grads.recurrent_state,
                 std::vector<c10::SymInt>{batch, num_v_heads, head_k_dim, head_v_dim}, hidden);
  const std::vector<Tensor> inputs = autograd::differentiable(args);
  if (needed.size() != inputs.size()) {
    refuse(op, "needed", text(needed.size(), " values"), text(inputs.size(), " values"));
  }

  std::vector<Tensor> result;
  if constexpr (fake) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      result.push_back(needed.get(i) && inputs[i].defined() ? like(inputs[i]) : Tensor());
    }
  } else {
    unpack_weights(args);
    result = autograd::layer_backward(args, forward_stages(op, args), grads,
                                      {needed.begin(), needed.end()});
  }
  // An op returns tensors only: an empty one stands for a gradient that nobody needs.
  for (Tensor& t : result) {
    if (!t.defined()) t = at::empty({0}, hidden.options());
  }
  return result;
}

template <bool fake>
void register_all(torch::Library& m) {
  m.impl("_gdn_layer_backward", gdn_layer_backward<fake>);
  m.impl("_gated_delta_rule_backward", gated_delta_rule_backward<fake>);
  m.impl("_causal_conv1d_backward", causal_conv1d_backward<fake>);
}

}  // namespace

TORCH_LIBRARY_IMPL(mps_fusion, CompositeExplicitAutograd, m) { register_all<false>(m); }
TORCH_LIBRARY_IMPL(mps_fusion, Meta, m) { register_all<true>(m); }

}  // namespace tmf
