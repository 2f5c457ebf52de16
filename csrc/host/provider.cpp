#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "host/provider.h"

#include <c10/util/Exception.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <sstream>
#include <unordered_map>

#include "recorder.h"

namespace tmf::host {
namespace {

// Ops run without the lock of the interpreter.
class Python {
 public:
  Python() {
    TORCH_CHECK(Py_IsInitialized(), "mps_fusion: kernels of CPU tensors are compiled by Python");
    state_ = PyGILState_Ensure();
  }
  ~Python() { PyGILState_Release(state_); }
  Python(const Python&) = delete;
  Python& operator=(const Python&) = delete;

 private:
  PyGILState_STATE state_;
};

struct Release {
  void operator()(PyObject* object) const { Py_XDECREF(object); }
};
using Object = std::unique_ptr<PyObject, Release>;

// The pending exception as an error of the op.
[[noreturn]] void rethrow(const char* what) {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  const Object type_owner(type), value_owner(value), trace_owner(trace);
  const Object text(value == nullptr ? nullptr : PyObject_Str(value));
  const char* message =
      text == nullptr ? nullptr : PyUnicode_AsUTF8AndSize(text.get(), nullptr);
  const std::string found = message == nullptr ? "unknown error" : message;
  PyErr_Clear();
  TORCH_CHECK(false, "mps_fusion: ", what, ": ", found);
}

Object checked_object(PyObject* object, const char* what) {
  if (object == nullptr) rethrow(what);
  return Object(object);
}

Object provider() {
  return checked_object(PyImport_ImportModule("torch_mps_fusion.host_kernels"),
                        "importing host_kernels");
}

std::string constants_text(const plan::Kernel& kernel) {
  return pipeline_key(kernel).substr(kernel.name.size() + 1);
}

std::vector<std::string> lines_of(const char* text) {
  std::vector<std::string> lines;
  std::istringstream in{std::string(text)};
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

HostKernel ask(const plan::Kernel& kernel, bool checked) {
  const Python python;
  const Object module = provider();
  const Object found = checked_object(
      PyObject_CallMethod(module.get(), "find", "sssi", kernel.family.c_str(), kernel.name.c_str(),
                          constants_text(kernel).c_str(), checked ? 1 : 0),
      kernel.name.c_str());
  unsigned long long launch = 0, entry = 0;
  const char* names = nullptr;
  if (!PyArg_ParseTuple(found.get(), "KKs", &launch, &entry, &names)) {
    rethrow(kernel.name.c_str());
  }
  return {reinterpret_cast<Launcher>(launch), reinterpret_cast<MhEntry>(entry), lines_of(names)};
}

}  // namespace

Session begin_session() {
  const Python python;
  const Object module = provider();
  const Object found =
      checked_object(PyObject_CallMethod(module.get(), "session", nullptr), "session");
  Session session;
  int checked = 0, record = 0;
  const char* options = nullptr;
  Py_ssize_t size = 0;
  if (!PyArg_ParseTuple(found.get(), "iiy#", &checked, &record, &options, &size)) {
    rethrow("session");
  }
  TORCH_CHECK(size == sizeof(MhOptions), "mps_fusion: metal_host has options of ", size,
              " bytes; this build takes ", sizeof(MhOptions));
  session.checked = checked != 0;
  session.record = record != 0;
  std::memcpy(&session.options, options, sizeof(MhOptions));
  return session;
}

const HostKernel& find_kernel(const plan::Kernel& kernel, bool checked) {
  static std::mutex lock;
  // Never destroyed: a thread may still be launching while the process ends.
  static auto& cache = *new std::unordered_map<std::string, HostKernel>;
  const std::string key = (checked ? "checked|" : "") + pipeline_key(kernel);
  {
    const std::lock_guard guard(lock);
    const auto found = cache.find(key);
    if (found != cache.end()) return found->second;
  }
  HostKernel made = ask(kernel, checked);  // unlocked: it may wait for the interpreter
  const std::lock_guard guard(lock);
  return cache.emplace(key, std::move(made)).first->second;
}

void report(const plan::Kernel& kernel, bool checked, const MhCounts& counts,
            const std::vector<MhBufferCounts>& per_buffer, const std::string& faults) {
  const Python python;
  const Object module = provider();
  checked_object(
      PyObject_CallMethod(module.get(), "report", "sssiy#y#s", kernel.family.c_str(),
                          kernel.name.c_str(), constants_text(kernel).c_str(), checked ? 1 : 0,
                          reinterpret_cast<const char*>(&counts), Py_ssize_t{sizeof counts},
                          reinterpret_cast<const char*>(per_buffer.data()),
                          static_cast<Py_ssize_t>(per_buffer.size() * sizeof(MhBufferCounts)),
                          faults.c_str()),
      kernel.name.c_str());
}

}  // namespace tmf::host
