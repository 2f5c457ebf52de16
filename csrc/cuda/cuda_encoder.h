// Dispatches as launches on a stream, which orders them: a barrier is nothing.
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

 private:
  Kernels& kernels_;
  int device_;
  Stream stream_;
  const plan::Kernel* kernel_ = nullptr;
  const LoadedKernel* loaded_ = nullptr;
  Arguments arguments_{};
};

// Refuses what the device would not take, before anything is launched.
void check_dispatch(const plan::Dispatch& dispatch, const LoadedKernel& kernel);

}  // namespace tmf::cuda
