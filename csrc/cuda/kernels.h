// Kernels of a CUDA device: PTX, as torch_mps_fusion/cuda_kernels.py finds or makes it, compiled by
// the driver on first use.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cuda/driver.h"
#include "plan/program.h"

namespace tmf::cuda {

// What every kernel takes: one struct by value, so that a captured launch keeps its arguments. The
// layout is that of torch_mps_fusion/metal_host/shim/msl/launch_ptx.h.
constexpr size_t kBuffers = 31, kValues = 4, kValueBytes = 128;
struct alignas(16) Arguments {
  std::array<void*, kBuffers> buffers;
  std::array<uint32_t, kBuffers> threadgroups;
  alignas(16) std::array<std::array<std::byte, kValueBytes>, kValues> values;
};
static_assert(offsetof(Arguments, values) == 384);

struct LoadedKernel {
  Function function = nullptr;
  int max_threads = 0;           // of a threadgroup
  std::vector<uint32_t> values;  // buffer indices of what is passed by value, by slot
};

class Kernels {
 public:
  // The device's context is current. Throws with what is missing, or what the driver says.
  const LoadedKernel& get(int device, const plan::Kernel& kernel);

 private:
  std::mutex mutex_;
  std::map<std::pair<int, plan::Kernel>, LoadedKernel> loaded_;
};

}  // namespace tmf::cuda
