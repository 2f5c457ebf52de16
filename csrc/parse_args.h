// The arguments of an op call as its struct of op_args.h, checked. For every op, fake or real, and
// for the backward ops.
#pragma once

#include <optional>
#include <string_view>

#include "op_args.h"

namespace tmf {

using OptTensor = std::optional<at::Tensor>;
using Text = std::string_view;

inline at::Tensor or_undefined(const OptTensor& t) { return t.value_or(at::Tensor()); }

enum class Call { functional, in_place, backward };

LayerArgs layer_args(const char* op, const at::Tensor& hidden, at::TensorList in_proj,
                     const at::Tensor& conv_weight, const at::Tensor& A_log,
                     const at::Tensor& dt_bias, const at::Tensor& norm_weight,
                     at::TensorList out_proj, const OptTensor& input_norm_weight,
                     const OptTensor& conv_state, const OptTensor& recurrent_state,
                     const OptTensor& mask, int64_t num_k_heads, int64_t num_v_heads,
                     int64_t head_k_dim, int64_t head_v_dim, Text head_map, Text weight_format,
                     double eps, Text variant, Call call);

RuleArgs rule_args(const char* op, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   const at::Tensor& g, const at::Tensor& beta, const at::Tensor& state,
                   const OptTensor& mask, Text head_map, std::optional<double> scale,
                   bool qk_l2norm, Text variant, Call call);

ConvArgs conv_args(const char* op, const at::Tensor& x, const at::Tensor& weight,
                   const at::Tensor& state, const OptTensor& mask, std::optional<Text> activation,
                   Text variant, Call call);

}  // namespace tmf
