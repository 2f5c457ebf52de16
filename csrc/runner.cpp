#include "runner.h"

#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string_view>

#include "errors.h"

namespace tmf {
namespace {

constexpr auto kDeviceTypes = static_cast<size_t>(c10::COMPILE_TIME_MAX_DEVICE_TYPES);
std::array<std::atomic<Runner*>, kDeviceTypes> runners;

// Empty if the kernel of that family and name, all its function constants off, becomes a pipeline.
std::string prepare_kernel(std::string_view device, std::string_view family,
                           std::string_view kernel) {
  const c10::DeviceType type = c10::Device(std::string(device)).type();
  if (const std::string reason = why_no_shaders(type); !reason.empty()) return reason;
  return runner_for(type)->prepare({std::string(family), std::string(kernel), {}});
}

}  // namespace

void register_runner(c10::DeviceType type, Runner& runner) {
  runners[static_cast<size_t>(type)] = &runner;
}

std::string why_no_shaders(c10::DeviceType type) {
  const Runner* runner = runner_for(type);
  if (runner == nullptr) {
    return text("this build runs no shaders on ", c10::DeviceTypeName(type, true));
  }
  const std::string reason = runner->why_not();
  return reason.empty() ? ""
                        : text("no shaders run on ", c10::DeviceTypeName(type, true), ": ", reason);
}

Runner* runner_for(c10::DeviceType type) { return runners[static_cast<size_t>(type)]; }

plan::DeviceSpec current_device(c10::DeviceType type) {
  if (type == c10::kCPU) return plan::host_device();
  if (type == c10::kCUDA) return *plan::find_device("H200");
  const Runner* runner = runner_for(type);
  const std::string name = runner == nullptr ? "" : runner->device_name();
  const plan::DeviceSpec* known = plan::find_device(name);
  plan::DeviceSpec spec =
      known != nullptr ? *known : plan::unknown_apple(name.empty() ? "Apple GPU" : name);
  if (runner != nullptr) spec.msl = std::min(spec.msl, runner->language());
  return spec;
}

TORCH_LIBRARY_IMPL(mps_fusion, CompositeExplicitAutograd, m) {
  m.impl("_prepare_kernel", prepare_kernel);
}

}  // namespace tmf
