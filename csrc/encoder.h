// The seam between plan and device: bind, dispatch, barrier. Everything above it runs and is tested
// on any machine; below it are the MPS stream, metal_host and a recorder.
#pragma once

#include <vector>

#include "plan/program.h"

namespace tmf {

// Memory as a device names it: an address on the host, a buffer object on Metal, plus an offset.
struct BufferView {
  void* object = nullptr;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

class Encoder {
 public:
  virtual ~Encoder() = default;
  virtual void set_kernel(const plan::Kernel& kernel) = 0;
  virtual void set_buffer(uint32_t index, const BufferView& view) = 0;
  virtual void set_bytes(uint32_t index, const void* data, uint32_t size) = 0;
  virtual void dispatch(const std::array<uint32_t, 3>& grid, uint32_t threads) = 0;
  virtual void barrier() = 0;
  // Before the next dispatch, whose kernel waits itself: the same as `barrier` unless a device can
  // start it early.
  virtual void overlapping_barrier() { barrier(); }
};

// Encodes every dispatch of the program, none of which may be a product; `buffers` are the
// program's, by index. Order against earlier and later work is the caller's.
void encode(const plan::Program& program, const std::vector<BufferView>& buffers, Encoder& encoder);

}  // namespace tmf
