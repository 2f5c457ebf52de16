// The op schemas: the one list of what exists. A schema is one line (the parser takes no line
// break).
#include <torch/library.h>

TORCH_LIBRARY(mps_fusion, m) {
  // clang-format off
  m.def("gdn_layer(Tensor hidden, Tensor[] in_proj, Tensor conv_weight, Tensor A_log, Tensor dt_bias, Tensor norm_weight, Tensor[] out_proj, Tensor? input_norm_weight=None, Tensor? conv_state=None, Tensor? recurrent_state=None, Tensor? mask=None, *, int num_k_heads, int num_v_heads, int head_k_dim, int head_v_dim, str head_map, str weight_format=\"rows\", float eps=1e-6, str variant=\"auto\") -> (Tensor output, Tensor conv_state, Tensor recurrent_state)");
  m.def("gdn_layer_(Tensor hidden, Tensor(a!) conv_state, Tensor(b!) recurrent_state, Tensor[] in_proj, Tensor conv_weight, Tensor A_log, Tensor dt_bias, Tensor norm_weight, Tensor[] out_proj, Tensor? input_norm_weight=None, Tensor? mask=None, *, int num_k_heads, int num_v_heads, int head_k_dim, int head_v_dim, str head_map, str weight_format=\"rows\", float eps=1e-6, str variant=\"auto\") -> Tensor output");
  m.def("gdn_layer_slots_(Tensor hidden, Tensor(a!) conv_slots, Tensor(b!) recurrent_slots, Tensor(c!) control, Tensor[] in_proj, Tensor conv_weight, Tensor A_log, Tensor dt_bias, Tensor norm_weight, Tensor[] out_proj, Tensor? input_norm_weight=None, Tensor? mask=None, *, int num_k_heads, int num_v_heads, int head_k_dim, int head_v_dim, str head_map, str weight_format=\"rows\", float eps=1e-6, str variant=\"auto\") -> Tensor output");
  m.def("gated_delta_rule(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor? state=None, Tensor? mask=None, *, str head_map, float? scale=None, bool qk_l2norm=False, str variant=\"auto\") -> (Tensor output, Tensor state)");
  m.def("gated_delta_rule_(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor(a!) state, Tensor? mask=None, *, str head_map, float? scale=None, bool qk_l2norm=False, str variant=\"auto\") -> Tensor output");
  m.def("causal_conv1d(Tensor x, Tensor weight, Tensor? state=None, Tensor? mask=None, *, str? activation=None, str variant=\"auto\") -> (Tensor output, Tensor state)");
  m.def("causal_conv1d_(Tensor x, Tensor(a!) state, Tensor weight, Tensor? mask=None, *, str? activation=None, str variant=\"auto\") -> Tensor output");
  m.def("packed_linear(Tensor x, Tensor[] weight, *, int out_features, str weight_format) -> Tensor");
  m.def("_gdn_layer_backward(Tensor? grad_output, Tensor? grad_conv_state, Tensor? grad_recurrent_state, bool[] needed, Tensor hidden, Tensor[] in_proj, Tensor conv_weight, Tensor A_log, Tensor dt_bias, Tensor norm_weight, Tensor[] out_proj, Tensor? input_norm_weight=None, Tensor? conv_state=None, Tensor? recurrent_state=None, Tensor? mask=None, *, int num_k_heads, int num_v_heads, int head_k_dim, int head_v_dim, str head_map, str weight_format=\"rows\", float eps=1e-6, str variant=\"auto\") -> Tensor[]");
  m.def("_gated_delta_rule_backward(Tensor? grad_output, Tensor? grad_state, Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor? state=None, Tensor? mask=None, *, str head_map, float? scale=None, bool qk_l2norm=False) -> (Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor state)");
  m.def("_causal_conv1d_backward(Tensor? grad_output, Tensor? grad_state, Tensor x, Tensor weight, Tensor? state=None, Tensor? mask=None, *, str? activation=None) -> (Tensor x, Tensor weight, Tensor state)");
  m.def("_supports(str device_type, ScalarType dtype, str variant, *, int num_k_heads, int num_v_heads, int head_k_dim, int head_v_dim, int conv_width, str head_map, str weight_format=\"rows\", int rows=1, int hidden_size=0) -> str");
  m.def("_choice(str device_type, str device, ScalarType dtype, *, int head_k_dim, int head_v_dim, int conv_width, int rows, int hidden_size) -> (str variant, str reason)");
  m.def("_choices() -> str");
  m.def("_cpu_isa() -> str");
  m.def("_prepare_kernel(str device, str family, str kernel) -> str");
  m.def("_plan_layer(Tensor hidden, Tensor[] in_proj, Tensor conv_weight, Tensor A_log, Tensor dt_bias, Tensor norm_weight, Tensor[] out_proj, Tensor? input_norm_weight=None, Tensor? conv_state=None, Tensor? recurrent_state=None, Tensor? mask=None, *, int num_k_heads, int num_v_heads, int head_k_dim, int head_v_dim, str head_map, str weight_format=\"rows\", float eps=1e-6, str variant=\"auto\", str device, str geometry=\"\", bool in_place=False, bool own_norm=False) -> (str listing, str calls, int minimum_bytes)");
  m.def("_plan_linear(int rows, int in_features, int out_features, ScalarType dtype, *, str device, str geometry=\"\") -> (str listing, str calls)");
  m.def("_chunks(int batch, int tokens, *, str device) -> str");
  m.def("_task_blocks(str device_type) -> Tensor[]");
  m.def("_check_launches(str device_type) -> ()");
  m.def("_task_times(str device_type) -> Tensor");
  m.def("_check_program(str listing) -> str");
  m.def("_override_geometry(str geometry) -> str");
  m.def("_record_host_programs(bool on) -> int");
  m.def("_devices() -> str");
  m.def("_parse_device(str device) -> str");
  m.def("_current_device(str device_type) -> str");
  m.def("_shader_text(str family) -> str");
  m.def("_forget_host_kernels() -> ()");
  // clang-format on
}
