#include "mps/metal_encoder.h"

namespace tmf::mps {

void MetalEncoder::set_kernel(const plan::Kernel&) { [encoder_ setComputePipelineState:*next_++]; }

void MetalEncoder::set_buffer(uint32_t index, const BufferView& view) {
  [encoder_ setBuffer:static_cast<id<MTLBuffer>>(view.object) offset:view.offset atIndex:index];
}

void MetalEncoder::set_bytes(uint32_t index, const void* data, uint32_t size) {
  [encoder_ setBytes:data length:size atIndex:index];
}

void MetalEncoder::dispatch(const std::array<uint32_t, 3>& grid, uint32_t threads) {
  [encoder_ dispatchThreadgroups:MTLSizeMake(grid[0], grid[1], grid[2])
           threadsPerThreadgroup:MTLSizeMake(threads, 1, 1)];
}

void MetalEncoder::barrier() { [encoder_ memoryBarrierWithScope:MTLBarrierScopeBuffers]; }

}  // namespace tmf::mps
