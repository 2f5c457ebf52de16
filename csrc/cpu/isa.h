// What the kernels of one instruction set are given, in plain structs: this header is all that
// their files share with the rest, so that no inline function is ever compiled for a wider set than
// the machine has.
#pragma once

#include <cstdint>

namespace tmf::cpu {

enum class Dtype { f32, f16, bf16 };

// A tensor of rank 4: strides in elements, unused leading ones 0.
struct View {
  void* data;
  int64_t stride[4];
};

// Real tokens of each row of the batch. Without a mask, index is null and every token is real.
struct Tokens {
  const int64_t* index;  // [B, T], the first count[b] are valid
  const int64_t* count;  // [B]
  int64_t length;        // T
};

struct RuleArgs {
  Dtype dtype;
  bool beta_is_f32, l2norm, tiled;
  float scale;
  int64_t Hk, Hv, Dk, Dv;
  View q, k, v, out;         // (B, T, H, D), last stride 1
  View g, beta;              // (B, T, Hv, unused)
  View state_in, state_out;  // (B, Hv, Dk, Dv); state_in.data may be null
  Tokens tokens;
};

// Column blocks [begin, end) of the value heads that read one key head; a block has rule_columns
// columns.
struct RuleItem {
  int64_t batch, key_head, begin, end;
};

struct ConvArgs {
  Dtype dtype;
  bool silu;
  int64_t C, K, width_in, width_out;
  View x, out;               // (B, T, C, unused)
  View weight;               // (C, K, unused, unused)
  View state_in, state_out;  // (B, C, W, unused); state_in.data may be null
  Tokens tokens;
};

struct NormArgs {
  Dtype dtype;
  float eps;
  int64_t size[4];  // rows are (size[0], size[1], size[2]), of size[3] elements
  View x, gate;     // (.., .., .., 1); gate.data is null for the (1 + w) norm
  const void* weight;
  void* out;  // contiguous
};

struct LinearArgs {
  Dtype dtype;
  int64_t inputs, row_stride;  // elements of x and of a weight row; between weight rows
  const void *x, *weight;      // last strides 1
  void* out;                   // contiguous
};

constexpr int64_t kRuleSegment = 128;  // tokens that are packed at a time
constexpr int64_t kConvChannels = 64;  // channels of one convolution item

struct Isa {
  const char* name;
  int64_t rule_columns;
  int64_t (*rule_scratch)(const RuleArgs&, int64_t blocks);  // floats
  void (*rule)(const RuleArgs&, const RuleItem&, float* scratch);
  void (*conv)(const ConvArgs&, int64_t batch, int64_t first_channel);
  void (*norm)(const NormArgs&, int64_t first_row, int64_t last_row);
  void (*linear_row)(const LinearArgs&, int64_t first, int64_t last);  // weight rows
};

extern const Isa isa_baseline;
#if defined(__x86_64__)
extern const Isa isa_avx2;
extern const Isa isa_avx512;
#endif

// The instruction set in use.
const Isa& isa();

}  // namespace tmf::cpu
