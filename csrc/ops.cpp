// The ops of schema.cpp: parse, check, choose a variant, run. The fake kernels share the first two.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cmath>
#include <string_view>

#include "errors.h"
#include "layer.h"
#include "op_args.h"
#include "packed_weight.h"
#include "parse_args.h"
#include "shader_layer.h"
#include "stages.h"
#include "variant.h"

namespace tmf {
namespace {

using at::Tensor;
const Stages& stages_of(Variant variant) {
  return variant == Variant::native ? native_stages() : stock_stages();
}

// Our own states keep the Dk elements of a value column contiguous.
Tensor new_recurrent_state(c10::SymInt batch, int64_t heads, int64_t dk, int64_t dv,
                           const at::TensorOptions& options) {
  return at::empty_symint({std::move(batch), heads, dv, dk}, options.dtype(at::kFloat))
      .transpose(-1, -2);
}

// ---------------------------------------------------------------------------------- gdn_layer

Tensor new_conv_state(const LayerArgs& args) {
  const c10::SymInt width =
      args.conv_state.defined() ? args.conv_state.sym_size(2) : args.conv_weight.sym_size(1);
  return at::empty_symint({args.hidden.sym_size(0), args.conv_dim(), width}, args.hidden.options());
}

Tensor new_recurrent_state(const LayerArgs& args) {
  return new_recurrent_state(args.hidden.sym_size(0), args.num_v_heads, args.head_k_dim,
                             args.head_v_dim, args.hidden.options());
}

Tensor run(const char* op, const LayerArgs& args, const StatePair& conv,
           const StatePair& recurrent) {
  const Capability capability{args.hidden.device().type(),
                              args.hidden.scalar_type(),
                              args.head_k_dim,
                              args.head_v_dim,
                              args.conv_weight.size(1),
                              args.weight_format,
                              args.hidden.size(2),
                              args.hidden.size(0) * args.hidden.size(1)};
  const Variant variant = resolve(op, args.variant, capability);
  if (runs_shaders(variant)) {
    return run_shader_layer(op, args, variant, conv, recurrent);
  }
  return run_layer(args, stages_of(variant), conv, recurrent);
}

template <bool fake>
std::tuple<Tensor, Tensor, Tensor> gdn_layer(
    const Tensor& hidden, at::TensorList in_proj, const Tensor& conv_weight, const Tensor& A_log,
    const Tensor& dt_bias, const Tensor& norm_weight, at::TensorList out_proj,
    const OptTensor& input_norm_weight, const OptTensor& conv_state,
    const OptTensor& recurrent_state, const OptTensor& mask, int64_t num_k_heads,
    int64_t num_v_heads, int64_t head_k_dim, int64_t head_v_dim, Text head_map, Text weight_format,
    double eps, Text variant) {
  const char* op = "gdn_layer";
  const LayerArgs args =
      layer_args(op, hidden, in_proj, conv_weight, A_log, dt_bias, norm_weight, out_proj,
                 input_norm_weight, conv_state, recurrent_state, mask, num_k_heads, num_v_heads,
                 head_k_dim, head_v_dim, head_map, weight_format, eps, variant, Call::functional);
  const Tensor new_conv = new_conv_state(args), new_recurrent = new_recurrent_state(args);
  const Tensor output = [&] {
    if constexpr (fake) return at::empty_symint(hidden.sym_sizes(), hidden.options());
    return run(op, args, {args.conv_state, new_conv}, {args.recurrent_state, new_recurrent});
  }();
  return {output, new_conv, new_recurrent};
}

template <bool fake>
Tensor gdn_layer_(const Tensor& hidden, Tensor conv_state, Tensor recurrent_state,
                  at::TensorList in_proj, const Tensor& conv_weight, const Tensor& A_log,
                  const Tensor& dt_bias, const Tensor& norm_weight, at::TensorList out_proj,
                  const OptTensor& input_norm_weight, const OptTensor& mask, int64_t num_k_heads,
                  int64_t num_v_heads, int64_t head_k_dim, int64_t head_v_dim, Text head_map,
                  Text weight_format, double eps, Text variant) {
  const char* op = "gdn_layer_";
  const LayerArgs args =
      layer_args(op, hidden, in_proj, conv_weight, A_log, dt_bias, norm_weight, out_proj,
                 input_norm_weight, conv_state, recurrent_state, mask, num_k_heads, num_v_heads,
                 head_k_dim, head_v_dim, head_map, weight_format, eps, variant, Call::in_place);
  if constexpr (fake) return at::empty_symint(hidden.sym_sizes(), hidden.options());
  return run(op, args, {conv_state, conv_state}, {recurrent_state, recurrent_state});
}

template <bool fake>
Tensor gdn_layer_slots_(const Tensor& hidden, const Tensor& conv_slots,
                        const Tensor& recurrent_slots, const Tensor& control,
                        at::TensorList in_proj, const Tensor& conv_weight, const Tensor& A_log,
                        const Tensor& dt_bias, const Tensor& norm_weight, at::TensorList out_proj,
                        const OptTensor& input_norm_weight, const OptTensor& mask,
                        int64_t num_k_heads, int64_t num_v_heads, int64_t head_k_dim,
                        int64_t head_v_dim, Text head_map, Text weight_format, double eps,
                        Text variant) {
  const char* op = "gdn_layer_slots_";
  check_slots(op, hidden, conv_slots, recurrent_slots, control);
  const Tensor conv = conv_slots.select(0, 0), recurrent = recurrent_slots.select(0, 0);
  LayerArgs args =
      layer_args(op, hidden, in_proj, conv_weight, A_log, dt_bias, norm_weight, out_proj,
                 input_norm_weight, conv, recurrent, mask, num_k_heads, num_v_heads, head_k_dim,
                 head_v_dim, head_map, weight_format, eps, variant, Call::in_place);
  if (!is_persistent(args.variant)) {
    refuse(op, "variant", text("'", variant, "'"), "'hybrid' or 'mega'");
  }
  if constexpr (fake) return at::empty_symint(hidden.sym_sizes(), hidden.options());
  args.conv_slots = conv_slots;
  args.recurrent_slots = recurrent_slots;
  args.control = control;
  return run(op, args, {conv, conv}, {recurrent, recurrent});
}

// --------------------------------------------------------------------------- gated_delta_rule

Tensor run(const char* op, const RuleArgs& a, const StatePair& state) {
  const Capability capability{a.q.device().type(), a.q.scalar_type(), a.q.size(3), a.v.size(3)};
  const double scale = a.scale.value_or(1.0 / std::sqrt(static_cast<double>(a.q.size(3))));
  return stages_of(resolve(op, a.variant, capability))
      .gated_delta_rule(a.q, a.k, a.v, a.g, a.beta, a.mask, state, a.head_map, scale, a.qk_l2norm);
}

template <bool fake>
std::tuple<Tensor, Tensor> gated_delta_rule(const Tensor& q, const Tensor& k, const Tensor& v,
                                            const Tensor& g, const Tensor& beta,
                                            const OptTensor& state, const OptTensor& mask,
                                            Text head_map, std::optional<double> scale,
                                            bool qk_l2norm, Text variant) {
  const char* op = "gated_delta_rule";
  const RuleArgs args = rule_args(op, q, k, v, g, beta, or_undefined(state), mask, head_map, scale,
                                  qk_l2norm, variant, Call::functional);
  const auto fixed = [](const Tensor& t, int64_t dim) {
    return t.sym_size(dim).guard_int(__FILE__, __LINE__);
  };
  const Tensor new_state =
      new_recurrent_state(q.sym_size(0), fixed(v, 2), fixed(q, 3), fixed(v, 3), q.options());
  const Tensor output = [&] {
    if constexpr (fake) return at::empty_symint(v.sym_sizes(), v.options());
    return run(op, args, {args.state, new_state});
  }();
  return {output, new_state};
}

template <bool fake>
Tensor gated_delta_rule_(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                         const Tensor& beta, Tensor state, const OptTensor& mask, Text head_map,
                         std::optional<double> scale, bool qk_l2norm, Text variant) {
  const char* op = "gated_delta_rule_";
  const RuleArgs args = rule_args(op, q, k, v, g, beta, state, mask, head_map, scale, qk_l2norm,
                                  variant, Call::in_place);
  if constexpr (fake) return at::empty_symint(v.sym_sizes(), v.options());
  return run(op, args, {state, state});
}

// ------------------------------------------------------------------------------ causal_conv1d

Tensor run(const char* op, const ConvArgs& a, const StatePair& state) {
  Capability capability{a.x.device().type(), a.x.scalar_type()};
  capability.conv_width = a.weight.size(1);
  return stages_of(resolve(op, a.variant, capability))
      .causal_conv1d(a.x.transpose(1, 2), a.weight, a.mask, state, a.silu)
      .transpose(1, 2)
      .contiguous();
}

template <bool fake>
std::tuple<Tensor, Tensor> causal_conv1d(const Tensor& x, const Tensor& weight,
                                         const OptTensor& state, const OptTensor& mask,
                                         std::optional<Text> activation, Text variant) {
  const char* op = "causal_conv1d";
  const ConvArgs args =
      conv_args(op, x, weight, or_undefined(state), mask, activation, variant, Call::functional);
  const c10::SymInt width = args.state.defined() ? args.state.sym_size(2) : args.weight.sym_size(1);
  const Tensor new_state = at::empty_symint({x.sym_size(0), x.sym_size(1), width}, x.options());
  const Tensor output = [&] {
    if constexpr (fake) return at::empty_symint(x.sym_sizes(), x.options());
    return run(op, args, {args.state, new_state});
  }();
  return {output, new_state};
}

template <bool fake>
Tensor causal_conv1d_(const Tensor& x, Tensor state, const Tensor& weight, const OptTensor& mask,
                      std::optional<Text> activation, Text variant) {
  const char* op = "causal_conv1d_";
  const ConvArgs args = conv_args(op, x, weight, state, mask, activation, variant, Call::in_place);
  if constexpr (fake) return at::empty_symint(x.sym_sizes(), x.options());
  return run(op, args, {state, state});
}

// ------------------------------------------------------------------------------ packed_linear

template <bool fake>
Tensor packed_linear(const Tensor& x, at::TensorList weight, int64_t out_features,
                     Text weight_format) {
  const char* op = "packed_linear";
  const LinearArgs args{x, weight.vec(), out_features, std::string(weight_format)};
  check(op, args);
  if constexpr (fake) {
    std::vector<c10::SymInt> sizes = x.sym_sizes().vec();
    sizes.back() = out_features;
    return at::empty_symint(sizes, x.options());
  } else {
    const std::string reason = why_not_packed(x.device().type(), weight_format);
    if (!reason.empty()) refuse_unsupported(op, reason);
    return run_packed_linear(op, x, weight[0], out_features, lanes_of(weight_format));
  }
}

// ----------------------------------------------------------------------------------- supports

std::string supports(Text device_type, at::ScalarType dtype, Text variant, int64_t num_k_heads,
                     int64_t num_v_heads, int64_t head_k_dim, int64_t head_v_dim,
                     int64_t conv_width, Text head_map, Text weight_format, int64_t rows,
                     int64_t hidden_size) {
  const char* op = "supports";
  parse_head_map(op, head_map);
  for (const auto& [value, name] :
       {std::pair{num_k_heads, "num_k_heads"}, std::pair{num_v_heads, "num_v_heads"},
        std::pair{head_k_dim, "head_k_dim"}, std::pair{head_v_dim, "head_v_dim"},
        std::pair{conv_width, "conv_width"}, std::pair{rows, "rows"}}) {
    if (value < 1) return text(name, " is ", value, "; it must be positive");
  }
  if (num_v_heads % num_k_heads != 0) {
    return text("num_v_heads ", num_v_heads, " is not a multiple of num_k_heads ", num_k_heads);
  }
  const c10::Device device{std::string(device_type)};
  if (hidden_size < 0) return text("hidden_size is ", hidden_size, "; it must not be negative");
  return why_unsupported(parse_variant(op, variant),
                         {device.type(), dtype, head_k_dim, head_v_dim, conv_width,
                          std::string(weight_format), hidden_size, rows});
}

// --------------------------------------------------------------------------------------- plans

// What gdn_layer, or gdn_layer_, would run on a device: for explain and tests. The tensors may be
// on the meta device; nothing runs.
std::tuple<std::string, std::string, int64_t> plan_layer(
    const Tensor& hidden, at::TensorList in_proj, const Tensor& conv_weight, const Tensor& A_log,
    const Tensor& dt_bias, const Tensor& norm_weight, at::TensorList out_proj,
    const OptTensor& input_norm_weight, const OptTensor& conv_state,
    const OptTensor& recurrent_state, const OptTensor& mask, int64_t num_k_heads,
    int64_t num_v_heads, int64_t head_k_dim, int64_t head_v_dim, Text head_map, Text weight_format,
    double eps, Text variant, Text device, Text geometry, bool in_place, bool own_norm) {
  const char* op = "_plan_layer";
  LayerArgs args = layer_args(
      op, hidden, in_proj, conv_weight, A_log, dt_bias, norm_weight, out_proj, input_norm_weight,
      conv_state, recurrent_state, mask, num_k_heads, num_v_heads, head_k_dim, head_v_dim, head_map,
      weight_format, eps, variant, in_place ? Call::in_place : Call::functional);
  StatePair conv{args.conv_state, args.conv_state};
  StatePair recurrent{args.recurrent_state, args.recurrent_state};
  if (!in_place) {
    args.hidden = hidden.to(at::kMeta);
    conv.out = new_conv_state(args);
    recurrent.out = new_recurrent_state(args);
  }
  return described_layer(op, args, conv, recurrent, device, geometry, own_norm);
}

template <bool fake>
void register_all(torch::Library& m) {
  m.impl("gdn_layer", gdn_layer<fake>);
  m.impl("gdn_layer_", gdn_layer_<fake>);
  m.impl("gdn_layer_slots_", gdn_layer_slots_<fake>);
  m.impl("gated_delta_rule", gated_delta_rule<fake>);
  m.impl("gated_delta_rule_", gated_delta_rule_<fake>);
  m.impl("causal_conv1d", causal_conv1d<fake>);
  m.impl("causal_conv1d_", causal_conv1d_<fake>);
  m.impl("packed_linear", packed_linear<fake>);
}

}  // namespace

// Every backend comes here, so that one which we do not serve is refused in our own words.
TORCH_LIBRARY_IMPL(mps_fusion, CompositeExplicitAutograd, m) {
  register_all<false>(m);
  m.impl("_supports", supports);
  m.impl("_plan_layer", plan_layer);
}
TORCH_LIBRARY_IMPL(mps_fusion, Meta, m) { register_all<true>(m); }

}  // namespace tmf
