#include "variant.h"

#include <array>
#include <utility>

#include "cpu/kernels.h"
#include "errors.h"

namespace tmf {
namespace {

constexpr std::array<std::pair<std::string_view, Variant>, 7> kVariants{{
    {"auto", Variant::automatic},
    {"stock", Variant::stock},
    {"native", Variant::native},
    {"packed", Variant::packed},
    {"core", Variant::core},
    {"hybrid", Variant::hybrid},
    {"mega", Variant::mega},
}};

constexpr const char* kVariantNames = "auto, stock, native, packed, core, hybrid, mega";

std::string quoted(std::string_view name) { return text("'", name, "'"); }

bool known_device(c10::DeviceType device) {
  return device == c10::kCPU || device == c10::kCUDA || device == c10::kMPS;
}

std::string why_not_native(const Capability& c) {
  if (c.device != c10::kCPU) {
    return text("variant 'native' runs on cpu only, not on ", c10::DeviceTypeName(c.device, true));
  }
  if (c.head_k_dim != 0 && !cpu::rule_supported(c.head_k_dim, c.head_v_dim)) {
    return text("variant 'native' has no kernel for head_k_dim ", c.head_k_dim, ", head_v_dim ",
                c.head_v_dim, "; each may be 32, 64, 128 or 256");
  }
  if (c.conv_width != 0 && !cpu::conv_supported(c.conv_width)) {
    return text("variant 'native' has no kernel for convolution width ", c.conv_width,
                "; it may be 2, 3 or 4");
  }
  return "";
}

}  // namespace

Variant parse_variant(const char* op, std::string_view name) {
  for (const auto& [known, variant] : kVariants) {
    if (known == name) return variant;
  }
  refuse(op, "variant", quoted(name), kVariantNames);
}

HeadMap parse_head_map(const char* op, std::string_view name) {
  if (name == "block") return HeadMap::block;
  if (name == "tiled") return HeadMap::tiled;
  refuse(op, "head_map", quoted(name),
         "'block' (h / (Hv / Hk), safetensors) or 'tiled' (h % Hk, GGUF)");
}

const char* name_of(Variant variant) {
  for (const auto& [name, known] : kVariants) {
    if (known == variant) return name.data();
  }
  return "?";
}

std::string why_unsupported(Variant variant, const Capability& c) {
  if (!known_device(c.device)) {
    return text("device type ", c10::DeviceTypeName(c.device, true),
                " is not supported; accepted: cpu, cuda, mps");
  }
  if (c.dtype != c10::kFloat && c.dtype != c10::kHalf && c.dtype != c10::kBFloat16) {
    return text("dtype ", dtype_name(c.dtype),
                " is not supported; accepted: float32, float16, bfloat16");
  }
  if (c.weight_format != "rows") {
    return text("weight_format ", quoted(c.weight_format), " is not known; accepted: rows");
  }
  switch (variant) {
    case Variant::automatic:
    case Variant::stock:
      return "";
    case Variant::native:
      return why_not_native(c);
    default:
      return text("variant ", quoted(name_of(variant)), " is not available on ",
                  c10::DeviceTypeName(c.device, true), " in this version");
  }
}

Variant resolve(const char* op, Variant requested, const Capability& capability) {
  if (requested == Variant::automatic && why_unsupported(Variant::native, capability).empty()) {
    return Variant::native;
  }
  const std::string reason = why_unsupported(requested, capability);
  if (!reason.empty()) refuse_unsupported(op, reason);
  return requested == Variant::automatic ? Variant::stock : requested;
}

}  // namespace tmf
