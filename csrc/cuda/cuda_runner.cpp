// Programs on PyTorch's current CUDA stream.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "cuda/cuda_encoder.h"
#include "errors.h"
#include "runner.h"

namespace tmf::cuda {
namespace {

// What metal_host makes PTX for.
constexpr int kNeededMajor = 9, kNeededMinor = 0;

int current_device_index() { return c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice().index(); }

std::string why_not_device(int index) {
  Device device = 0;
  int major = 0, minor = 0;
  const Result result = driver()->device_get(&device, index);
  if (result != 0) return text("there is no cuda device: ", error_text(result));
  driver()->device_attribute(&major, kMajor, device);
  driver()->device_attribute(&minor, kMinor, device);
  if (major == kNeededMajor && minor == kNeededMinor) return "";
  return text("our kernels are built for CUDA compute capability ", kNeededMajor, ".", kNeededMinor,
              "; cuda device ", index, " has ", major, ".", minor);
}

class CudaRunner final : public Runner {
 public:
  std::string why_not() const override {
    if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA)) return "this PyTorch is built without CUDA";
    if (driver() == nullptr) return why_no_driver();
    return why_not_device(current_device_index());
  }

  BufferView view(const at::Tensor& tensor) const override {
    const auto offset = static_cast<uint64_t>(tensor.storage_offset()) * tensor.element_size();
    return {const_cast<void*>(tensor.storage().data()), offset, tensor.storage().nbytes() - offset};
  }

  void make_ready(const plan::Program& program) override {
    const int device = current_device_index();
    const Current context(device);
    check_all(program, device);
  }

  void run(const plan::Program& program, const std::vector<BufferView>& buffers) override {
    const int device = current_device_index();
    const Current context(device);
    check_all(program, device);
    CudaEncoder encoder(kernels_, device, current_stream(device));
    encode(program, buffers, encoder);
  }

  bool records() const override {
    const int device = current_device_index();
    const Current context(device);
    int capturing = 0;
    check(driver()->is_capturing(current_stream(device), &capturing), "asking for a capture");
    return capturing != 0;
  }

  std::string prepare(const plan::Kernel& kernel) override {
    if (const std::string reason = why_not(); !reason.empty()) return reason;
    try {
      const int device = current_device_index();
      const Current context(device);
      kernels_.get(device, kernel);
      return "";
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    } catch (const std::exception& error) {
      return error.what();
    }
  }

 private:
  void check_all(const plan::Program& program, int device) {
    for (const plan::Dispatch& dispatch : program.dispatches) {
      if (!dispatch.product) check_dispatch(dispatch, kernels_.get(device, dispatch.kernel));
    }
  }

  Kernels kernels_;
};

// Never destroyed: the driver may be gone by the time the process ends.
const bool registered = [] {
  register_runner(c10::kCUDA, *new CudaRunner);
  return true;
}();

}  // namespace
}  // namespace tmf::cuda
