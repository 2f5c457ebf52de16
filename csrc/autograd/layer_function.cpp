// Autograd of gdn_layer, as functions.cpp for the other ops.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "errors.h"
#include "parse_args.h"

namespace tmf {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Results = std::tuple<Tensor, Tensor, Tensor>;

using Signature = Results(const Tensor&, at::TensorList, const Tensor&, const Tensor&,
                          const Tensor&, const Tensor&, at::TensorList, const OptTensor&,
                          const OptTensor&, const OptTensor&, const OptTensor&, int64_t, int64_t,
                          int64_t, int64_t, Text, Text, double, Text);
using Backward = std::vector<Tensor>(const OptTensor&, const OptTensor&, const OptTensor&,
                                     c10::List<bool>, const Tensor&, at::TensorList, const Tensor&,
                                     const Tensor&, const Tensor&, const Tensor&, at::TensorList,
                                     const OptTensor&, const OptTensor&, const OptTensor&,
                                     const OptTensor&, int64_t, int64_t, int64_t, int64_t, Text,
                                     Text, double, Text);

struct Keywords {
  int64_t num_k_heads, num_v_heads, head_k_dim, head_v_dim;
  std::string head_map, weight_format;
  double eps;
  std::string variant;
};

// The tensors of a call in the order of the schema, the lists flat; what was not given is
// undefined.
struct Operands {
  variable_list all;
  size_t in_proj, out_proj;  // lengths of the two lists

  at::TensorList in() const { return at::TensorList(all).slice(1, in_proj); }
  at::TensorList out() const { return at::TensorList(all).slice(5 + in_proj, out_proj); }
  const Tensor& weight(size_t i) const { return all[1 + in_proj + i]; }  // conv_weight and on
  OptTensor rest(size_t i) const {                                       // input_norm_weight and on
    const Tensor& t = all[5 + in_proj + out_proj + i];
    return t.defined() ? OptTensor(t) : std::nullopt;
  }
};

template <typename Op, typename... First>
auto call(const Op& op, const Operands& o, const Keywords& k, First&&... first) {
  return op.call(std::forward<First>(first)..., o.all[0], o.in(), o.weight(0), o.weight(1),
                 o.weight(2), o.weight(3), o.out(), o.rest(0), o.rest(1), o.rest(2), o.rest(3),
                 k.num_k_heads, k.num_v_heads, k.head_k_dim, k.head_v_dim, k.head_map,
                 k.weight_format, k.eps, k.variant);
}

Results layer_below(const Operands& operands, const Keywords& keywords) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mps_fusion::gdn_layer", "")
                             .typed<Signature>();
  const at::AutoDispatchBelowADInplaceOrView guard;
  return call(op, operands, keywords);
}

void save(AutogradContext* ctx, const Operands& o, const Keywords& k) {
  ctx->set_materialize_grads(false);
  ctx->save_for_backward(o.all);
  auto& data = ctx->saved_data;
  data["in_proj"] = static_cast<int64_t>(o.in_proj);
  data["out_proj"] = static_cast<int64_t>(o.out_proj);
  data["num_k_heads"] = k.num_k_heads;
  data["num_v_heads"] = k.num_v_heads;
  data["head_k_dim"] = k.head_k_dim;
  data["head_v_dim"] = k.head_v_dim;
  data["head_map"] = k.head_map;
  data["weight_format"] = k.weight_format;
  data["eps"] = k.eps;
  data["variant"] = k.variant;
}

std::pair<Operands, Keywords> restore(AutogradContext* ctx) {
  auto& data = ctx->saved_data;
  const auto integer = [&](const char* name) { return data[name].toInt(); };
  const auto word = [&](const char* name) { return data[name].toStringRef(); };
  return {
      {ctx->get_saved_variables(), static_cast<size_t>(integer("in_proj")),
       static_cast<size_t>(integer("out_proj"))},
      {integer("num_k_heads"), integer("num_v_heads"), integer("head_k_dim"), integer("head_v_dim"),
       word("head_map"), word("weight_format"), data["eps"].toDouble(), word("variant")}};
}

struct LayerFunction : torch::autograd::Function<LayerFunction> {
  // `given` are the defined ones of the operands, which autograd follows.
  static variable_list forward(AutogradContext* ctx, at::TensorList given, const Operands& operands,
                               const Keywords& keywords, const c10::List<bool>& needed) {
    save(ctx, operands, keywords);
    ctx->saved_data["needed"] = needed;
    const auto [output, conv, recurrent] = layer_below(operands, keywords);
    return {output, conv, recurrent};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("mps_fusion::_gdn_layer_backward", "")
                               .typed<Backward>();
    const auto [operands, keywords] = restore(ctx);
    const c10::List<bool> needed = ctx->saved_data["needed"].toBoolList();
    const auto optional = [](const Tensor& t) { return t.defined() ? OptTensor(t) : std::nullopt; };
    const variable_list all = call(op, operands, keywords, optional(grads[0]), optional(grads[1]),
                                   optional(grads[2]), needed);
    variable_list result;
    for (size_t i = 0; i < operands.all.size(); ++i) {
      if (!operands.all[i].defined()) continue;
      result.push_back(i < all.size() && needed.get(i) ? all[i] : Tensor());
    }
    result.resize(result.size() + 3);  // operands, keywords, needed
    return result;
  }
};

void refuse_packed_gradient(const Tensor& weight, const char* name, Text weight_format) {
  if (weight_format == "rows" || !weight.requires_grad()) return;
  refuse("gdn_layer", name, "a packed weight that requires grad",
         "requires_grad=False, or the weight in rows (packed weights have no gradient)");
}

Results gdn_layer(const Tensor& hidden, at::TensorList in_proj, const Tensor& conv_weight,
                  const Tensor& A_log, const Tensor& dt_bias, const Tensor& norm_weight,
                  at::TensorList out_proj, const OptTensor& input_norm_weight,
                  const OptTensor& conv_state, const OptTensor& recurrent_state,
                  const OptTensor& mask, int64_t num_k_heads, int64_t num_v_heads,
                  int64_t head_k_dim, int64_t head_v_dim, Text head_map, Text weight_format,
                  double eps, Text variant) {
  Operands operands{{hidden}, in_proj.size(), out_proj.size()};
  variable_list& all = operands.all;
  all.insert(all.end(), in_proj.begin(), in_proj.end());
  all.insert(all.end(), {conv_weight, A_log, dt_bias, norm_weight});
  all.insert(all.end(), out_proj.begin(), out_proj.end());
  for (const OptTensor* t : {&input_norm_weight, &conv_state, &recurrent_state, &mask}) {
    all.push_back(or_undefined(*t));
  }
  const Keywords keywords{num_k_heads, num_v_heads,           head_k_dim,
                          head_v_dim,  std::string(head_map), std::string(weight_format),
                          eps,         std::string(variant)};

  c10::List<bool> needed;
  variable_list given;
  bool any = false;
  for (size_t i = 0; i < all.size(); ++i) {
    const bool wanted = all[i].defined() && all[i].requires_grad();
    if (i + 1 < all.size()) needed.push_back(wanted);  // the last is the mask
    any = any || wanted;
    if (all[i].defined()) given.push_back(all[i]);
  }
  if (!any || !at::GradMode::is_enabled()) return layer_below(operands, keywords);
  for (const Tensor& w : in_proj) refuse_packed_gradient(w, "in_proj[0]", weight_format);
  for (const Tensor& w : out_proj) refuse_packed_gradient(w, "out_proj[0]", weight_format);
  const variable_list r = LayerFunction::apply(at::TensorList(given), operands, keywords, needed);
  return {r[0], r[1], r[2]};
}

}  // namespace

TORCH_LIBRARY_IMPL(mps_fusion, Autograd, m) { m.impl("gdn_layer", gdn_layer); }

}  // namespace tmf
