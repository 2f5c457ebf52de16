#include "variant.h"

#include <array>
#include <utility>

#include "auto_choice.h"
#include "cpu/kernels.h"
#include "errors.h"
#include "packed_weight.h"
#include "plan/persistent.h"
#include "runner.h"

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

// The instances of the shaders: each head dim is 32, 64 or 128, the convolution up to 4 wide.
std::string why_no_shader(const char* name, const Capability& c) {
  const std::string device = c10::DeviceTypeName(c.device, true);
  if (c.head_k_dim == 0 || c.conv_width == 0) {
    return text("variant '", name, "' is not available on ", device,
                " for this op: it runs whole layers (gdn_layer)");
  }
  const std::string format = why_not_packed(c.device, c.weight_format);
  if (!format.empty()) return text("variant '", name, "': ", format);
  for (int64_t dim : {c.head_k_dim, c.head_v_dim}) {
    if (dim == 32 || dim == 64 || dim == 128) continue;
    return text("variant '", name, "' has no kernel for head_k_dim ", c.head_k_dim, ", head_v_dim ",
                c.head_v_dim, "; each may be 32, 64 or 128");
  }
  if (c.conv_width > 4) {
    return text("variant '", name, "' has no kernel for convolution width ", c.conv_width,
                "; it may be 1 to 4");
  }
  if (c.hidden % 32 != 0) {
    return text("variant '", name, "' needs a hidden size that is a multiple of 32, not ",
                c.hidden);
  }
  return "";
}

std::string why_not_persistent(const char* name, const Capability& c) {
  if (const std::string reason = why_no_shader(name, c); !reason.empty()) return reason;
  const plan::DeviceSpec device = current_device(c.device);
  if (device.msl < plan::kPersistentLevel) {
    return text("variant '", name, "' needs Metal 3.2 (macOS 15); ", device.name, " has ",
                device.msl / 100, ".", device.msl / 10 % 10);
  }
  const auto most = static_cast<int64_t>(plan::most_rows(device));
  if (c.rows > most) {
    return text("variant '", name, "' takes up to ", most, " rows (tokens of all sequences), not ",
                c.rows, "; packed and core take more");
  }
  return "";
}

}  // namespace

std::string why_not_packed(c10::DeviceType device, std::string_view weight_format) {
  if (const std::string reason = why_no_shaders(device); !reason.empty()) return reason;
  const std::string format = packed_format(current_device(device).lanes);
  if (weight_format == format) return "";
  return text("weight_format ", quoted(weight_format), " is not accepted on ",
              c10::DeviceTypeName(device, true), "; accepted: ", quoted(format),
              " (torch_mps_fusion.packing.pack makes it)");
}

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
  const bool rows = c.weight_format == "rows";
  if (!rows && lanes_of(c.weight_format).empty()) {
    return text("weight_format ", quoted(c.weight_format),
                " is not known; accepted: ", weight_format_names());
  }
  switch (variant) {
    case Variant::automatic:
    case Variant::stock:
    case Variant::native:
      if (!rows) {
        return text("variant ", quoted(name_of(variant)), ": weight_format ",
                    quoted(c.weight_format),
                    " is not accepted; accepted: 'rows' (packed weights serve packed, core, hybrid "
                    "and mega)");
      }
      return variant == Variant::native ? why_not_native(c) : "";
    case Variant::packed:
    case Variant::core:
      return why_no_shader(name_of(variant), c);
    case Variant::hybrid:
    case Variant::mega:
      return why_not_persistent(name_of(variant), c);
  }
  return "";
}

bool is_persistent(Variant variant) {
  return variant == Variant::hybrid || variant == Variant::mega;
}

bool runs_shaders(Variant variant) {
  return variant == Variant::packed || variant == Variant::core || is_persistent(variant);
}

Variant resolve(const char* op, Variant requested, const Capability& capability) {
  const std::string reason = why_unsupported(requested, capability);
  if (!reason.empty()) refuse_unsupported(op, reason);
  if (requested != Variant::automatic) return requested;
  return choose(capability, current_device(capability.device)).variant;
}

}  // namespace tmf
