// Programs on PyTorch's MPS stream.
#include "runner.h"

#include <ATen/mps/MPSStream.h>
#include <torch/version.h>

#include <exception>
#include <string_view>

#include "mps/memory.h"
#include "mps/metal_encoder.h"
#include "mps/pipelines.h"

#if TORCH_VERSION_MAJOR < 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 11)
#error "torch_mps_fusion needs torch 2.11 or later"
#endif

namespace tmf::mps {
namespace {

// "Apple M1 Max" is "M1 Max" in the planner's table.
constexpr std::string_view kMaker = "Apple ";

// Refuses what Metal would not take, before anything is encoded.
void check(const plan::Dispatch& dispatch, id<MTLComputePipelineState> pipeline) {
  const auto most = [pipeline maxTotalThreadsPerThreadgroup];
  TORCH_CHECK(dispatch.threads > 0 && dispatch.threads <= most,
              "mps_fusion: ", dispatch.kernel.name, ": threads: got ", dispatch.threads,
              "; accepted: 1 to ", most);
  for (const uint32_t groups : dispatch.grid) {
    TORCH_CHECK(groups > 0, "mps_fusion: ", dispatch.kernel.name, ": grid: got an empty one");
  }
  for (const plan::Argument& argument : dispatch.arguments) {
    if (argument.buffer >= 0) continue;
    TORCH_CHECK(!argument.bytes.empty() && argument.bytes.size() <= kMostInlineBytes,
                "mps_fusion: ", dispatch.kernel.name, ": argument ", argument.index, ": got ",
                argument.bytes.size(), " inline bytes; accepted: 1 to ", kMostInlineBytes);
  }
}

class MpsRunner final : public Runner {
 public:
  // A tensor's storage on MPS is the MTLBuffer itself, and its offset is ours to apply.
  BufferView view(const at::Tensor& tensor) const override {
    const auto offset = static_cast<uint64_t>(tensor.storage_offset()) * tensor.element_size();
    return {tensor.storage().mutable_data(), offset, tensor.storage().nbytes() - offset};
  }

  void run(const plan::Program& program, const std::vector<BufferView>& buffers) override {
    if (program.dispatches.empty()) return;
    at::mps::MPSStream* stream = at::mps::getCurrentMPSStream();
    std::vector<id<MTLComputePipelineState>> made;
    for (const plan::Dispatch& dispatch : program.dispatches) {
      made.push_back(pipelines_.get(stream->device(), dispatch.kernel));
      check(dispatch, made.back());
    }
    const auto& pipelines = made;  // a block copies what is no reference
    at::mps::dispatch_sync_with_rethrow(stream->queue(), ^{
      in_pool([&] {
        MetalEncoder encoder(stream->commandEncoder(), pipelines);
        // PyTorch's encoder may come to run dispatches concurrently: what was encoded before this
        // program comes first, what follows comes after it.
        if (!program.dispatches.front().barrier_before) encoder.barrier();
        encode(program, buffers, encoder);
        encoder.barrier();
      });
    });
  }

  std::string device_name() const override {
    std::string name;
    in_pool([&] { name = [[at::mps::getCurrentMPSStream()->device() name] UTF8String]; });
    return name.starts_with(kMaker) ? name.substr(kMaker.size()) : name;
  }

  uint32_t language() const override {
#ifdef __MAC_15_0
    if (@available(macOS 15.0, *)) return 320;
#endif
    return 310;
  }

  std::string prepare(const plan::Kernel& kernel) override {
    try {
      pipelines_.get(at::mps::getCurrentMPSStream()->device(), kernel);
      return "";
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    } catch (const std::exception& error) {
      return error.what();
    }
  }

 private:
  Pipelines pipelines_;
};

// Never destroyed: Metal's objects must not be released while the process ends.
const bool registered = [] {
  register_runner(c10::kMPS, *new MpsRunner);
  return true;
}();

}  // namespace
}  // namespace tmf::mps
