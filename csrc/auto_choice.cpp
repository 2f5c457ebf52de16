#include "auto_choice.h"

#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <sstream>
#include <utility>
#include <vector>

#include "errors.h"
#include "packed_weight.h"
#include "plan/call.h"

namespace tmf {
namespace {

struct Row {
  // cpu, cuda, any, or how the name of an Apple chip begins; empty: every Apple chip
  std::string_view device;
  int64_t most_rows;  // tokens of all sequences; 0: any
  Variant variant;
  std::string_view receipt;  // in benchmarks/results, of a run on that device
  std::string_view reason;
};

// The first row that fits and runs. On Apple chips a row for a variant of ours needs a receipt.
constexpr std::array kTable{
    Row{"cpu", 0, Variant::native, "cpu/rule-1-cpu-native.json", "CPU tensors: our C++"},
    Row{"cuda", 0, Variant::stock, "",
        "CUDA tensors: aten's kernels; ours run there to be compared"},
    Row{"", 0, Variant::stock, "",
        "no Apple chip has a receipt yet (a run of the test suite on it); ask for packed or core "
        "by "
        "name"},
};

constexpr bool ours_have_receipts() {
  return std::all_of(kTable.begin(), kTable.end(), [](const Row& r) {
    return r.variant == Variant::stock || !r.receipt.empty();
  });
}
static_assert(ours_have_receipts());

constexpr std::string_view kEverywhere = "any";
constexpr const char* kAnyFormat = "any";  // the weights would be had in the format it takes

// TMF_AUTO's row, and the table.
const std::vector<Row>& rows() {
  static const std::vector<Row> all = [] {
    std::vector<Row> found(kTable.begin(), kTable.end());
    const char* wanted = std::getenv("TMF_AUTO");
    if (wanted != nullptr && *wanted != '\0') {
      const Variant variant = parse_variant("TMF_AUTO", wanted);
      if (variant != Variant::automatic) {
        found.insert(found.begin(), Row{kEverywhere, 0, variant, "", "TMF_AUTO asks for it"});
      }
    }
    return found;
  }();
  return all;
}

std::atomic<bool> persistent_failed = false;

// What a row's variant is by now.
Variant current(Variant variant) {
  if (!is_persistent(variant) || !persistent_failed) return variant;
  TORCH_WARN_ONCE("mps_fusion: variant 'auto' runs 'packed' instead of '", name_of(variant),
                  "' from now on: a persistent launch of this process failed");
  return Variant::packed;
}

bool fits(const Row& row, const Capability& c, const plan::DeviceSpec& device) {
  if (row.most_rows != 0 && c.rows > row.most_rows) return false;
  if (row.device == kEverywhere) return true;
  if (c.device == c10::kCPU || c.device == c10::kCUDA) {
    return row.device == (c.device == c10::kCPU ? "cpu" : "cuda");
  }
  return row.device != "cpu" && row.device != "cuda" && device.name.starts_with(row.device);
}

std::tuple<std::string, std::string> choice(std::string_view device_type, std::string_view device,
                                            at::ScalarType dtype, int64_t head_k_dim,
                                            int64_t head_v_dim, int64_t conv_width, int64_t rows,
                                            int64_t hidden_size) {
  try {
    const Capability c{c10::Device(std::string(device_type)).type(),
                       dtype,
                       head_k_dim,
                       head_v_dim,
                       conv_width,
                       kAnyFormat,
                       hidden_size,
                       rows};
    const Choice found = choose(c, plan::parse_device(device));
    return {name_of(found.variant), found.reason};
  } catch (const plan::Refusal& r) {
    refuse("_choice", r.argument, r.got, r.accepted);
  }
}

}  // namespace

void avoid_persistent() { persistent_failed = true; }

Choice choose(const Capability& capability, const plan::DeviceSpec& device) {
  std::string refused;
  for (const Row& row : rows()) {
    if (!fits(row, capability, device)) continue;
    const Variant variant = current(row.variant);
    Capability asked = capability;
    if (capability.weight_format == kAnyFormat) {
      asked.weight_format = runs_shaders(variant) ? packed_format(device.lanes) : "rows";
    }
    const std::string why_not = why_unsupported(variant, asked);
    if (why_not.empty()) return {variant, refused + std::string(row.reason)};
    refused = why_not + "; ";
  }
  return {Variant::stock, refused + "stock runs everywhere"};
}

std::string choices() {
  std::ostringstream out;
  for (const Row& r : rows()) {
    out << r.device << '\t' << r.most_rows << '\t' << name_of(r.variant) << '\t' << r.receipt
        << '\t' << r.reason << '\n';
  }
  return out.str();
}

TORCH_LIBRARY_IMPL(mps_fusion, CompositeExplicitAutograd, m) {
  m.impl("_choice", choice);
  m.impl("_choices", choices);
}

}  // namespace tmf
