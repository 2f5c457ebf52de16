// The seam's encoder over a Metal compute encoder.
#pragma once

#import <Metal/Metal.h>

#include <vector>

#include "encoder.h"

namespace tmf::mps {

// Metal's limit of inline bytes.
constexpr uint32_t kMostInlineBytes = 4096;

// Made inside the stream's queue block and gone at its end: it owns nothing, opens and ends
// nothing. `pipelines` are those of the kernels that will be set, in order: nothing is compiled
// here.
class MetalEncoder final : public Encoder {
 public:
  MetalEncoder(id<MTLComputeCommandEncoder> encoder,
               const std::vector<id<MTLComputePipelineState>>& pipelines)
      : encoder_(encoder), next_(pipelines.begin()) {}

  void set_kernel(const plan::Kernel& kernel) override;
  void set_buffer(uint32_t index, const BufferView& view) override;
  void set_bytes(uint32_t index, const void* data, uint32_t size) override;
  void dispatch(const std::array<uint32_t, 3>& grid, uint32_t threads) override;
  void barrier() override;

 private:
  id<MTLComputeCommandEncoder> encoder_;
  std::vector<id<MTLComputePipelineState>>::const_iterator next_;
};

}  // namespace tmf::mps
