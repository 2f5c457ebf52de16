// Autocast: the layer's tensors take one dtype, A_log, dt_bias, the gates and the recurrent state
// stay float32. That dtype is autocast's own, except where an argument fixes it: a conv state that
// is written in place (it cannot be cast) and packed weights (their layout depends on the dtype).
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "parse_args.h"

namespace tmf {
namespace {

using at::Tensor;

// Sees the arguments of a call on the stack, by the names of the schema.
class Arguments {
 public:
  Arguments(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::DeviceType device)
      : schema_(op.schema()), stack_(*stack), device_(device) {}

  bool has(Text name) const { return schema_.argumentIndexWithName(name).has_value(); }

  c10::IValue& value(Text name) const {
    const size_t count = schema_.arguments().size();
    return torch::jit::peek(stack_, *schema_.argumentIndexWithName(name), count);
  }

  void cast(std::initializer_list<Text> names, c10::ScalarType type) const {
    for (Text name : names) {
      if (!has(name)) continue;
      c10::IValue& v = value(name);
      if (v.isTensor()) {
        v = at::autocast::cached_cast(type, v.toTensor(), device_);
      } else if (v.isTensorList()) {
        v = at::autocast::cached_cast(type, at::TensorList(v.toTensorVector()), device_);
      }
    }
  }

 private:
  const c10::FunctionSchema& schema_;
  torch::jit::Stack& stack_;
  c10::DeviceType device_;
};

// The dtype of the call: that of the first tensor which cannot be cast, else autocast's.
c10::ScalarType call_type(const c10::OperatorHandle& op, const Arguments& a,
                          c10::DeviceType device) {
  const std::string& name = op.schema().name();
  if (name == "mps_fusion::gdn_layer_") return a.value("conv_state").toTensor().scalar_type();
  if (name == "mps_fusion::gdn_layer_slots_") return a.value("conv_slots").toTensor().scalar_type();
  if (name == "mps_fusion::causal_conv1d_") return a.value("state").toTensor().scalar_type();
  if (a.has("weight_format") && a.value("weight_format").toStringRef() != "rows") {
    const auto packed = a.value(a.has("in_proj") ? "in_proj" : "weight").toTensorVector();
    if (!packed.empty()) return packed[0].scalar_type();
  }
  return at::autocast::get_lower_precision_fp_from_device_type(device);
}

template <c10::DeviceType device>
void cast_and_call(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const Arguments a(op, stack, device);
  const c10::ScalarType type = call_type(op, a, device);
  a.cast({"hidden", "in_proj", "conv_weight", "norm_weight", "out_proj", "input_norm_weight",
          "conv_state", "q", "k", "v", "x", "weight"},
         type);
  a.cast({"A_log", "dt_bias", "g", "beta"}, at::kFloat);
  // The convolution's state is of its dtype; the rule's is float32 or refused, as is a layer's.
  if (!a.has("g")) a.cast({"state"}, type);
  op.callBoxed(stack);
}

// A backward pass in an autocast region: the gradients' own products stay in their dtype.
template <c10::DeviceType device>
void call_without_autocast(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  op.callBoxed(stack);
}

template <c10::DeviceType device>
void register_all(torch::Library& m) {
  for (const char* name :
       {"gdn_layer", "gdn_layer_", "gdn_layer_slots_", "gated_delta_rule", "gated_delta_rule_",
        "causal_conv1d", "causal_conv1d_", "packed_linear"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&cast_and_call<device>>());
  }
  for (const char* name :
       {"_gdn_layer_backward", "_gated_delta_rule_backward", "_causal_conv1d_backward"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&call_without_autocast<device>>());
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(mps_fusion, AutocastCPU, m) { register_all<c10::kCPU>(m); }
TORCH_LIBRARY_IMPL(mps_fusion, AutocastCUDA, m) { register_all<c10::kCUDA>(m); }
TORCH_LIBRARY_IMPL(mps_fusion, AutocastMPS, m) { register_all<c10::kMPS>(m); }

}  // namespace tmf
