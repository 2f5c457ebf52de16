// Autograd of the functional ops: below it they run as ever; the backward is the op of
// backward_ops.cpp. The in-place ops have none (they refuse tensors that require grad) and only
// count the versions of the states that they write.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/library.h>

#include "errors.h"
#include "parse_args.h"

namespace tmf {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Results2 = std::tuple<Tensor, Tensor>;
using Results3 = std::tuple<Tensor, Tensor, Tensor>;

OptTensor optional(const Tensor& t) { return t.defined() ? OptTensor(t) : std::nullopt; }

bool wants_grad(std::initializer_list<const Tensor*> tensors) {
  return at::GradMode::is_enabled() &&
         std::any_of(tensors.begin(), tensors.end(),
                     [](const Tensor* t) { return t->defined() && t->requires_grad(); });
}

template <typename Signature>
auto find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// ------------------------------------------------------------------------------ causal_conv1d

using ConvSignature = Results2(const Tensor&, const Tensor&, const OptTensor&, const OptTensor&,
                               std::optional<Text>, Text);
using ConvBackward = Results3(const OptTensor&, const OptTensor&, const Tensor&, const Tensor&,
                              const OptTensor&, const OptTensor&, std::optional<Text>);

Results2 conv_below(const Tensor& x, const Tensor& weight, const OptTensor& state,
                    const OptTensor& mask, std::optional<Text> activation, Text variant) {
  static const auto op = find<ConvSignature>("mps_fusion::causal_conv1d");
  const at::AutoDispatchBelowADInplaceOrView guard;
  return op.call(x, weight, state, mask, activation, variant);
}

struct ConvFunction : torch::autograd::Function<ConvFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                               const OptTensor& state, const OptTensor& mask,
                               std::optional<Text> activation, Text variant) {
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({x, weight, or_undefined(state), or_undefined(mask)});
    ctx->saved_data["activation"] =
        activation ? c10::IValue(std::string(*activation)) : c10::IValue();
    const auto [output, after] = conv_below(x, weight, state, mask, activation, variant);
    return {output, after};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    static const auto op = find<ConvBackward>("mps_fusion::_causal_conv1d_backward");
    const variable_list saved = ctx->get_saved_variables();
    const c10::IValue& activation = ctx->saved_data["activation"];
    const auto [x, weight, state] =
        op.call(optional(grads[0]), optional(grads[1]), saved[0], saved[1], optional(saved[2]),
                optional(saved[3]),
                activation.isNone() ? std::nullopt : std::optional<Text>(activation.toStringRef()));
    return {x, weight, saved[2].defined() ? state : Tensor(), {}, {}, {}};
  }
};

Results2 causal_conv1d(const Tensor& x, const Tensor& weight, const OptTensor& state,
                       const OptTensor& mask, std::optional<Text> activation, Text variant) {
  const Tensor before = or_undefined(state);
  if (!wants_grad({&x, &weight, &before})) {
    return conv_below(x, weight, state, mask, activation, variant);
  }
  const variable_list r = ConvFunction::apply(x, weight, state, mask, activation, variant);
  return {r[0], r[1]};
}

// --------------------------------------------------------------------------- gated_delta_rule

using RuleSignature = Results2(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                               const Tensor&, const OptTensor&, const OptTensor&, Text,
                               std::optional<double>, bool, Text);
using RuleBackward = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>(
    const OptTensor&, const OptTensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
    const Tensor&, const OptTensor&, const OptTensor&, Text, std::optional<double>, bool);

Results2 rule_below(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                    const Tensor& beta, const OptTensor& state, const OptTensor& mask,
                    Text head_map, std::optional<double> scale, bool qk_l2norm, Text variant) {
  static const auto op = find<RuleSignature>("mps_fusion::gated_delta_rule");
  const at::AutoDispatchBelowADInplaceOrView guard;
  return op.call(q, k, v, g, beta, state, mask, head_map, scale, qk_l2norm, variant);
}

struct RuleFunction : torch::autograd::Function<RuleFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k,
                               const Tensor& v, const Tensor& g, const Tensor& beta,
                               const OptTensor& state, const OptTensor& mask, Text head_map,
                               std::optional<double> scale, bool qk_l2norm, Text variant) {
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({q, k, v, g, beta, or_undefined(state), or_undefined(mask)});
    ctx->saved_data["head_map"] = std::string(head_map);
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["qk_l2norm"] = qk_l2norm;
    const auto [output, after] =
        rule_below(q, k, v, g, beta, state, mask, head_map, scale, qk_l2norm, variant);
    return {output, after};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    static const auto op = find<RuleBackward>("mps_fusion::_gated_delta_rule_backward");
    const variable_list s = ctx->get_saved_variables();
    const auto [q, k, v, g, beta, state] = op.call(
        optional(grads[0]), optional(grads[1]), s[0], s[1], s[2], s[3], s[4], optional(s[5]),
        optional(s[6]), ctx->saved_data["head_map"].toStringRef(),
        ctx->saved_data["scale"].toOptional<double>(), ctx->saved_data["qk_l2norm"].toBool());
    return {q, k, v, g, beta, s[5].defined() ? state : Tensor(), {}, {}, {}, {}, {}};
  }
};

Results2 gated_delta_rule(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                          const Tensor& beta, const OptTensor& state, const OptTensor& mask,
                          Text head_map, std::optional<double> scale, bool qk_l2norm,
                          Text variant) {
  const Tensor before = or_undefined(state);
  if (!wants_grad({&q, &k, &v, &g, &beta, &before})) {
    return rule_below(q, k, v, g, beta, state, mask, head_map, scale, qk_l2norm, variant);
  }
  const variable_list r =
      RuleFunction::apply(q, k, v, g, beta, state, mask, head_map, scale, qk_l2norm, variant);
  return {r[0], r[1]};
}

// ------------------------------------------------------------------------- states in place

// Autograd sees that a state which it has saved was written, as with aten's own in-place ops.
template <int first, int states>
void count_versions(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack) {
  const size_t arguments = op.schema().arguments().size();
  variable_list written;
  for (int i = 0; i < states; ++i) {
    written.push_back(torch::jit::peek(*stack, first + i, arguments).toTensor());
  }
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
  }
  for (const Tensor& t : written) {
    // Autograd never saves an inference tensor, which has no version.
    if (!t.is_inference()) torch::autograd::impl::bump_version(t);
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(mps_fusion, Autograd, m) {
  m.impl("gated_delta_rule", gated_delta_rule);
  m.impl("causal_conv1d", causal_conv1d);
}

TORCH_LIBRARY_IMPL(mps_fusion, ADInplaceOrView, m) {
  m.impl("gdn_layer_", torch::CppFunction::makeFromBoxedFunction<&count_versions<1, 2>>());
  m.impl("gdn_layer_slots_", torch::CppFunction::makeFromBoxedFunction<&count_versions<1, 3>>());
  m.impl("gated_delta_rule_", torch::CppFunction::makeFromBoxedFunction<&count_versions<5, 1>>());
  m.impl("causal_conv1d_", torch::CppFunction::makeFromBoxedFunction<&count_versions<1, 1>>());
}

}  // namespace tmf
