#include "cuda/cuda_encoder.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "errors.h"

namespace tmf::cuda {
namespace {

constexpr std::array<uint32_t, 3> kMostGroups{0x7fffffff, 65535, 65535};

}  // namespace

void CudaEncoder::set_kernel(const plan::Kernel& kernel) {
  kernel_ = &kernel;
  loaded_ = &kernels_.get(device_, kernel);
  arguments_ = {};
}

void CudaEncoder::set_buffer(uint32_t index, const BufferView& view) {
  arguments_.buffers.at(index) = static_cast<char*>(view.object) + view.offset;
}

void CudaEncoder::set_bytes(uint32_t index, const void* data, uint32_t size) {
  const auto found = std::find(loaded_->values.begin(), loaded_->values.end(), index);
  std::memcpy(arguments_.values.at(found - loaded_->values.begin()).data(), data, size);
}

void CudaEncoder::dispatch(const std::array<uint32_t, 3>& grid, uint32_t threads) {
  void* parameters[] = {&arguments_};
  LaunchAttribute early;
  const LaunchConfig config{.grid = {grid[0], grid[1], grid[2]},
                            .block = {threads, 1, 1},
                            .stream = stream_,
                            .attributes = &early,
                            .attribute_count = early_ ? 1u : 0u};
  const Result result = driver()->launch(&config, loaded_->function, parameters, nullptr);
  launched_ = true;
  early_ = false;
  if (result == 0) return;
  check(result, text("launching ", kernel_->name, " as ", grid[0], " x ", grid[1], " x ", grid[2],
                     " threadgroups of ", threads));
}

void check_dispatch(const plan::Dispatch& dispatch, const LoadedKernel& kernel) {
  const std::string& name = dispatch.kernel.name;
  const auto most = static_cast<uint32_t>(kernel.max_threads);
  TORCH_CHECK(dispatch.threads > 0 && dispatch.threads <= most, "mps_fusion: cuda: ", name,
              ": threads: got ", dispatch.threads, "; accepted: 1 to ", most);
  for (size_t i = 0; i < 3; ++i) {
    TORCH_CHECK(dispatch.grid[i] > 0 && dispatch.grid[i] <= kMostGroups[i],
                "mps_fusion: cuda: ", name, ": threadgroups: got ", dispatch.grid[i],
                " in dimension ", i, "; accepted: 1 to ", kMostGroups[i]);
  }
  for (const plan::Argument& a : dispatch.arguments) {
    TORCH_CHECK(a.index < kBuffers, "mps_fusion: cuda: ", name, ": argument ", a.index,
                "; accepted: 0 to ", kBuffers - 1);
    if (a.buffer >= 0) continue;
    const bool known =
        std::find(kernel.values.begin(), kernel.values.end(), a.index) != kernel.values.end();
    TORCH_CHECK(known && a.bytes.size() <= kValueBytes, "mps_fusion: cuda: ", name, ": argument ",
                a.index, ": got ", a.bytes.size(), " bytes by value; accepted: up to ",
                known ? kValueBytes : 0);
  }
}

}  // namespace tmf::cuda
