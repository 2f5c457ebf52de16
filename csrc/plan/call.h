// A layer call in numbers: all that the planner knows of it.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

namespace tmf::plan {

enum class Io : uint8_t { f32, f16, bf16 };

constexpr uint64_t size_of(Io io) { return io == Io::f32 ? 4 : 2; }
constexpr const char* name_of(Io io) {
  return io == Io::f32 ? "f32" : io == Io::f16 ? "f16" : "bf16";
}

// A call that no program serves: the argument, what came and what is accepted.
struct Refusal : std::invalid_argument {
  Refusal(std::string argument, std::string got, std::string accepted)
      : std::invalid_argument(argument + ": got " + got + "; accepted: " + accepted),
        argument(std::move(argument)),
        got(std::move(got)),
        accepted(std::move(accepted)) {}
  std::string argument, got, accepted;
};

// Strides are in elements.
struct ConvLayout {
  int64_t batch = 0, channel = 0, time = 0;
};
struct StateLayout {
  int64_t batch = 0, head = 0;
  bool keys_adjacent = false;  // Dk has stride 1, else Dv; a head is contiguous
};
struct MaskLayout {
  int64_t batch = 0, token = 0;
};

// From the first to the second slot of both states.
struct SlotLayout {
  int64_t conv = 0, state = 0;
};

struct LayerCall {
  uint64_t batch = 0, tokens = 0, hidden = 0;
  uint64_t k_heads = 0, v_heads = 0, head_k_dim = 0, head_v_dim = 0;
  uint64_t conv_taps = 0;   // K
  uint64_t conv_width = 0;  // W, entries of a conv state
  Io io = Io::f32;
  bool tiled_heads = false;
  bool input_norm = false;  // and the residual
  bool float_a = false, float_dt = false;
  float eps = 1e-6f;
  std::optional<MaskLayout> mask;
  std::optional<ConvLayout> conv_in;  // both states or neither
  std::optional<StateLayout> state_in;
  ConvLayout conv_out;
  StateLayout state_out;
  bool in_place = false;  // the states that are written are the states that are read
  // The committed one of two slots is read, the other written; conv_in and state_in say how.
  std::optional<SlotLayout> slots;

  uint64_t rows() const { return batch * tokens; }
  uint64_t key_dim() const { return k_heads * head_k_dim; }
  uint64_t value_dim() const { return v_heads * head_v_dim; }
  uint64_t conv_dim() const { return 2 * key_dim() + value_dim(); }
  uint64_t in_features() const { return conv_dim() + value_dim() + 2 * v_heads; }
};

constexpr uint64_t ceil_div(uint64_t a, uint64_t b) { return (a + b - 1) / b; }
constexpr uint64_t kTile = 16;     // outputs of a packed tile, see torch_mps_fusion/packing.py
constexpr uint64_t kPassRows = 8;  // rows of one pass of a projection
constexpr uint64_t kSegments = 8;  // of K, see shaders/include/rows.h
constexpr uint64_t padded_rows(uint64_t n) { return ceil_div(n, kTile) * kTile; }
constexpr uint64_t packed_elements(uint64_t n, uint64_t k) { return padded_rows(n) * k; }

}  // namespace tmf::plan
