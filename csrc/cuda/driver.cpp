#include "cuda/driver.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <array>
#include <mutex>

namespace tmf::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";
constexpr const char* kTorchLibrary = "libtorch_cuda.so";
constexpr int kMostDevices = 64;

struct Opened {
  Driver calls{};
  std::string failure;  // empty if the driver runs
};

template <typename F>
bool find(void* library, const char* name, F& call) {
  call = reinterpret_cast<F>(dlsym(library, name));
  return call != nullptr;
}

std::string open(Driver& d) {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return "there is no CUDA driver (libcuda.so.1) on this machine";
  const bool complete = find(library, "cuInit", d.init) &&
                        find(library, "cuGetErrorName", d.error_name) &&
                        find(library, "cuGetErrorString", d.error_string) &&
                        find(library, "cuDeviceGet", d.device_get) &&
                        find(library, "cuDeviceGetAttribute", d.device_attribute) &&
                        find(library, "cuDeviceGetName", d.device_name) &&
                        find(library, "cuDevicePrimaryCtxRetain", d.primary_context) &&
                        find(library, "cuCtxGetCurrent", d.current_context) &&
                        find(library, "cuCtxPushCurrent_v2", d.push_context) &&
                        find(library, "cuCtxPopCurrent_v2", d.pop_context) &&
                        find(library, "cuModuleLoadDataEx", d.module_load) &&
                        find(library, "cuModuleGetFunction", d.module_function) &&
                        find(library, "cuFuncGetAttribute", d.function_attribute) &&
                        find(library, "cuThreadExchangeStreamCaptureMode", d.capture_mode) &&
                        find(library, "cuStreamIsCapturing", d.is_capturing) &&
                        find(library, "cuLaunchKernelEx", d.launch);
  if (!complete) return "the CUDA driver of this machine (libcuda.so.1) is too old";
  const Result result = d.init(0);
  if (result == 0) return "";
  const char* name = nullptr;
  d.error_name(result, &name);
  return std::string("the CUDA driver does not start: ") + (name == nullptr ? "unknown" : name);
}

// Never closed: threads may launch while the process ends.
const Opened& opened() {
  static const Opened& one = *[] {
    auto* made = new Opened;
    made->failure = open(made->calls);
    return made;
  }();
  return one;
}

Context primary_context(int device) {
  static std::mutex mutex;
  static std::array<Context, kMostDevices> contexts{};
  TORCH_CHECK(device >= 0 && device < kMostDevices, "mps_fusion: cuda device ", device,
              "; accepted: 0 to ", kMostDevices - 1);
  const std::lock_guard guard(mutex);
  if (contexts[device] == nullptr) {
    Device handle = 0;
    check(driver()->device_get(&handle, device), "opening the device");
    check(driver()->primary_context(&contexts[device], handle), "opening the device");
  }
  return contexts[device];
}

}  // namespace

const Driver* driver() { return opened().failure.empty() ? &opened().calls : nullptr; }
const std::string& why_no_driver() { return opened().failure; }

std::string error_text(Result result) {
  const char *name = nullptr, *text = nullptr;
  driver()->error_name(result, &name);
  driver()->error_string(result, &text);
  if (name == nullptr) return "CUDA error " + std::to_string(result);
  return std::string(name) + " (" + (text == nullptr ? "" : text) + ")";
}

void check(Result result, const std::string& what) {
  TORCH_CHECK(result == 0, "mps_fusion: cuda: ", what, ": ", error_text(result));
}

// PyTorch's C interface has it, and it is there whenever PyTorch runs CUDA: so this builds against
// a PyTorch without CUDA, and one build serves both.
Stream current_stream(int device) {
  using Ask = int (*)(int, void**);
  static const Ask ask = [] {
    void* library = dlopen(kTorchLibrary, RTLD_NOW | RTLD_NOLOAD);
    return library == nullptr
               ? nullptr
               : reinterpret_cast<Ask>(dlsym(library, "aoti_torch_get_current_cuda_stream"));
  }();
  TORCH_CHECK(ask != nullptr, "mps_fusion: cuda: this PyTorch does not say what its stream is (",
              kTorchLibrary, ": aoti_torch_get_current_cuda_stream)");
  void* stream = nullptr;
  TORCH_CHECK(ask(device, &stream) == 0, "mps_fusion: cuda: PyTorch gave no current stream");
  return static_cast<Stream>(stream);
}

Current::Current(int device) {
  const Context wanted = primary_context(device);
  Context now = nullptr;
  check(driver()->current_context(&now), "asking for the context");
  if (now == wanted) return;
  check(driver()->push_context(wanted), "entering the context");
  pushed_ = true;
}

Current::~Current() {
  Context left = nullptr;
  if (pushed_) driver()->pop_context(&left);
}

}  // namespace tmf::cuda
