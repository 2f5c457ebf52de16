// The variants by name, and what each runs on which device: the one place that answers `supports`.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <string>
#include <string_view>

#include "head_map.h"

namespace tmf {

enum class Variant { automatic, stock, native, packed, core, hybrid, mega };

Variant parse_variant(const char* op, std::string_view name);
HeadMap parse_head_map(const char* op, std::string_view name);
const char* name_of(Variant variant);

// What decides whether a variant can run, apart from the shapes that every op checks itself.
// A zero means that the op has no such dimension.
struct Capability {
  c10::DeviceType device;
  c10::ScalarType dtype;
  int64_t head_k_dim = 0;
  int64_t head_v_dim = 0;
  int64_t conv_width = 0;
  std::string weight_format = "rows";
  int64_t hidden = 0;
  int64_t rows = 0;  // tokens of all sequences
};

// Whether the variant's work is a program of ours, and whether that has a persistent dispatch.
bool runs_shaders(Variant variant);
bool is_persistent(Variant variant);

// Empty if `variant` runs; else the reason why not. `automatic` runs wherever `stock` does.
std::string why_unsupported(Variant variant, const Capability& capability);

// Empty if packed weights of this format can be used on the device; else the reason why not.
std::string why_not_packed(c10::DeviceType device, std::string_view weight_format);

// The variant that runs: `automatic` becomes a concrete one, an unsupported one is refused.
Variant resolve(const char* op, Variant requested, const Capability& capability);

}  // namespace tmf
