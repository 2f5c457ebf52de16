// Dispatches as launches on a stream, which orders them: a barrier is nothing. Where dispatches may
// overlap, one behind a barrier is launched as a programmatic dependent of the one before it: it
// may start once all threadgroups of that one have called next_may_start(), and waits itself. The
// first of a program starts when all earlier work is done, whatever that work was.
#pragma once

#include "cuda/kernels.h"
#include "encoder.h"

namespace tmf::cuda {

class CudaEncoder final : public Encoder {
 public:
  CudaEncoder(Kernels& kernels, int device, Stream stream)
      : kernels_(kernels), device_(device), stream_(stream) {}

  void set_kernel(const plan::Kernel& kernel) override;
  void set_buffer(uint32_t index, const BufferView& view) override;
  void set_bytes(uint32_t index, const void* data, uint32_t size) override;
  void dispatch(const std::array<uint32_t, 3>& grid, uint32_t threads) override;
  void barrier() override {}
  void overlapping_barrier() override { early_ = launched_; }

 private:
  Kernels& kernels_;
  int device_;
  Stream stream_;
  const plan::Kernel* kernel_ = nullptr;
  const LoadedKernel* loaded_ = nullptr;
  Arguments arguments_{};
  bool launched_ = false, early_ = false;
};

// Refuses what the device would not take, before anything is launched.
void check_dispatch(const plan::Dispatch& dispatch, const LoadedKernel& kernel);

}  // namespace tmf::cuda
