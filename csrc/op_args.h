// The arguments of each op as one struct, and the checks that every device and the fake kernels
// share. A check reads only metadata, so it also runs on symbolic shapes. After it, every size,
// dtype, device and stride promised below holds; an argument that breaks a promise was refused by
// name before anything ran.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "head_map.h"
#include "variant.h"

namespace tmf {

// Symbols: B batch, T tokens, H hidden, Hk/Hv key/value heads, Dk/Dv head dims, K convolution
// width, W width of the convolution state (W >= K - 1), C = 2 Hk Dk + Hv Dv convolution channels.
struct LayerArgs {
  at::Tensor hidden;                 // (B, T, H); its dtype is the layer's
  std::vector<at::Tensor> in_proj;   // rows q, k, v, z, b, a: one tensor, or qkv, z, b, a; packed:
                                     // one flat tensor, as out_proj
  at::Tensor conv_weight;            // (C, K)
  at::Tensor A_log, dt_bias;         // (Hv), the layer's dtype or float32
  at::Tensor norm_weight;            // (Dv)
  std::vector<at::Tensor> out_proj;  // one tensor (H, Hv Dv)
  at::Tensor input_norm_weight;      // (H), or undefined: no norm of the input and no residual
  at::Tensor conv_state;             // (B, C, W), or undefined: zeros
  at::Tensor recurrent_state;        // (B, Hv, Dk, Dv) float32, Dk or Dv contiguous, or undefined
  at::Tensor mask;                   // (B, T) bool, true for real tokens, or undefined
  int64_t num_k_heads, num_v_heads, head_k_dim, head_v_dim;
  HeadMap head_map;
  double eps;
  Variant variant;
  std::string weight_format;  // "rows", or a packed one
  bool in_place;              // the states are written
  // Of gdn_layer_slots_, else undefined: two slots of both states, and the control words that name
  // the committed one. The states above are then views of the first slots.
  at::Tensor conv_slots, recurrent_slots, control;

  int64_t key_dim() const { return num_k_heads * head_k_dim; }
  int64_t value_dim() const { return num_v_heads * head_v_dim; }
  int64_t conv_dim() const { return 2 * key_dim() + value_dim(); }
};

struct RuleArgs {
  at::Tensor q, k;   // (B, T, Hk, Dk), one dtype with v
  at::Tensor v;      // (B, T, Hv, Dv)
  at::Tensor g;      // (B, T, Hv) float32, log decay
  at::Tensor beta;   // (B, T, Hv) float32 or the dtype of q
  at::Tensor state;  // as LayerArgs::recurrent_state
  at::Tensor mask;   // (B, T) bool, or undefined
  HeadMap head_map;
  std::optional<double> scale;  // 1 / sqrt(Dk) if absent
  bool qk_l2norm;
  Variant variant;
  bool in_place;
};

struct ConvArgs {
  at::Tensor x;       // (B, C, T)
  at::Tensor weight;  // (C, K)
  at::Tensor state;   // (B, C, W), W >= K - 1, or undefined
  at::Tensor mask;    // (B, T) bool, or undefined
  bool silu;
  Variant variant;
  bool in_place;
};

struct LinearArgs {
  at::Tensor x;                    // (.., K), K % 32 == 0
  std::vector<at::Tensor> weight;  // one flat tensor: (out_features, K) packed
  int64_t out_features;
  std::string weight_format;
};

void check(const char* op, const LayerArgs& args);
// Slots (2, ..) of both states that do not overlap, and the control block: int32, contiguous, at
// least 16 words.
void check_slots(const char* op, const at::Tensor& hidden, const at::Tensor& conv_slots,
                 const at::Tensor& recurrent_slots, const at::Tensor& control);

void check(const char* op, const LinearArgs& args);
void check(const char* op, const RuleArgs& args);
void check(const char* op, const ConvArgs& args);

bool parse_activation(const char* op, std::optional<std::string_view> activation);

}  // namespace tmf
