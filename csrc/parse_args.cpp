#include "parse_args.h"

namespace tmf {

LayerArgs layer_args(const char* op, const at::Tensor& hidden, at::TensorList in_proj,
                     const at::Tensor& conv_weight, const at::Tensor& A_log,
                     const at::Tensor& dt_bias, const at::Tensor& norm_weight,
                     at::TensorList out_proj, const OptTensor& input_norm_weight,
                     const OptTensor& conv_state, const OptTensor& recurrent_state,
                     const OptTensor& mask, int64_t num_k_heads, int64_t num_v_heads,
                     int64_t head_k_dim, int64_t head_v_dim, Text head_map, Text weight_format,
                     double eps, Text variant, Call call) {
  LayerArgs args{hidden,
                 in_proj.vec(),
                 conv_weight,
                 A_log,
                 dt_bias,
                 norm_weight,
                 out_proj.vec(),
                 or_undefined(input_norm_weight),
                 or_undefined(conv_state),
                 or_undefined(recurrent_state),
                 or_undefined(mask),
                 num_k_heads,
                 num_v_heads,
                 head_k_dim,
                 head_v_dim,
                 parse_head_map(op, head_map),
                 eps,
                 parse_variant(op, variant),
                 std::string(weight_format),
                 call == Call::in_place,
                 call == Call::backward,
                 {},
                 {},
                 {}};
  check(op, args);
  return args;
}

RuleArgs rule_args(const char* op, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   const at::Tensor& g, const at::Tensor& beta, const at::Tensor& state,
                   const OptTensor& mask, Text head_map, std::optional<double> scale,
                   bool qk_l2norm, Text variant, Call call) {
  RuleArgs args{q,
                k,
                v,
                g,
                beta,
                state,
                or_undefined(mask),
                parse_head_map(op, head_map),
                scale,
                qk_l2norm,
                parse_variant(op, variant),
                call == Call::in_place,
                call == Call::backward};
  check(op, args);
  return args;
}

ConvArgs conv_args(const char* op, const at::Tensor& x, const at::Tensor& weight,
                   const at::Tensor& state, const OptTensor& mask, std::optional<Text> activation,
                   Text variant, Call call) {
  ConvArgs args{x,
                weight,
                state,
                or_undefined(mask),
                parse_activation(op, activation),
                parse_variant(op, variant),
                call == Call::in_place,
                call == Call::backward};
  check(op, args);
  return args;
}

}  // namespace tmf
