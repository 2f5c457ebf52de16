#include "python.h"

#include "cuda/kernels.h"

#include <c10/util/Exception.h>

#include <sstream>

#include "recorder.h"

namespace tmf::cuda {
namespace {

using python::Object;

struct Text {
  std::string ptx;
  std::vector<uint32_t> values;
};

Text ask(const plan::Kernel& kernel) {
  const python::Lock lock("kernels of CUDA tensors");
  const Object module = python::import("torch_mps_fusion.cuda_kernels");
  const std::string constants = pipeline_key(kernel).substr(kernel.name.size() + 1);
  const Object found =
      python::owned(PyObject_CallMethod(module.get(), "find", "sss", kernel.family.c_str(),
                                        kernel.name.c_str(), constants.c_str()),
                    kernel.name.c_str());
  const char *ptx = nullptr, *values = nullptr;
  if (!PyArg_ParseTuple(found.get(), "ss", &ptx, &values)) python::rethrow(kernel.name.c_str());
  Text text{ptx, {}};
  std::istringstream in{std::string(values)};
  for (uint32_t index; in >> index;) text.values.push_back(index);
  return text;
}

// Loading is no work of any stream: a capture that is under way must not refuse it.
class OutsideCapture {
 public:
  OutsideCapture() { driver()->capture_mode(&mode_); }
  ~OutsideCapture() { driver()->capture_mode(&mode_); }
  OutsideCapture(const OutsideCapture&) = delete;
  OutsideCapture& operator=(const OutsideCapture&) = delete;

 private:
  int mode_ = kCaptureRelaxed;
};

Module load(const Text& text, const std::string& name) {
  const OutsideCapture outside;
  std::string log(8192, '\0');
  std::array<int, 2> options{kErrorLog, kErrorLogBytes};
  std::array<void*, 2> given{log.data(), reinterpret_cast<void*>(log.size())};
  Module module = nullptr;
  const Result result =
      driver()->module_load(&module, text.ptx.c_str(), 2, options.data(), given.data());
  TORCH_CHECK(result == 0, "mps_fusion: cuda: ", name, ": ", error_text(result), " ", log.c_str());
  return module;
}

LoadedKernel make(const plan::Kernel& kernel) {
  const Text text = ask(kernel);
  TORCH_CHECK(text.values.size() <= kValues, "mps_fusion: cuda: ", kernel.name, " takes ",
              text.values.size(), " arguments by value; accepted: up to ", kValues);
  LoadedKernel made;
  made.values = text.values;
  const Module module = load(text, kernel.name);
  check(driver()->module_function(&made.function, module, kernel.name.c_str()), kernel.name);
  check(driver()->function_attribute(&made.max_threads, kMaxThreads, made.function), kernel.name);
  return made;
}

}  // namespace

const LoadedKernel& Kernels::get(int device, const plan::Kernel& kernel) {
  const std::pair key(device, kernel);
  {
    const std::lock_guard guard(mutex_);
    if (const auto found = loaded_.find(key); found != loaded_.end()) return found->second;
  }
  LoadedKernel made = make(kernel);  // unlocked: it may wait for the interpreter
  const std::lock_guard guard(mutex_);
  return loaded_.emplace(key, std::move(made)).first->second;
}

}  // namespace tmf::cuda
