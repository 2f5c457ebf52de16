// The seam's encoder over a Metal compute encoder.
#pragma once

#import <Metal/Metal.h>

#include "encoder.h"
#include "mps/pipelines.h"

namespace tmf::mps {

// Metal's limit of inline bytes.
constexpr uint32_t kMostInlineBytes = 4096;

// Made inside the stream's queue block and gone at its end: it owns nothing, opens and ends
// nothing.
class MetalEncoder final : public Encoder {
 public:
  MetalEncoder(id<MTLComputeCommandEncoder> encoder, id<MTLDevice> device, Pipelines& pipelines)
      : encoder_(encoder), device_(device), pipelines_(pipelines) {}

  void set_kernel(const plan::Kernel& kernel) override;
  void set_buffer(uint32_t index, const BufferView& view) override;
  void set_bytes(uint32_t index, const void* data, uint32_t size) override;
  void dispatch(const std::array<uint32_t, 3>& grid, uint32_t threads) override;
  void barrier() override;

 private:
  id<MTLComputeCommandEncoder> encoder_;
  id<MTLDevice> device_;
  Pipelines& pipelines_;
};

}  // namespace tmf::mps
