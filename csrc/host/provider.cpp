#include "host/provider.h"
#include "python.h"

#include <c10/util/Exception.h>
#include <torch/library.h>

#include <cstring>
#include <mutex>
#include <sstream>
#include <unordered_map>

#include "recorder.h"

namespace tmf::host {
namespace {

using python::Object;
using python::owned;
using python::rethrow;

constexpr const char* kWho = "kernels of CPU tensors";
constexpr const char* kModule = "torch_mps_fusion.host_kernels";

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
  const python::Lock lock(kWho);
  const Object module = python::import(kModule);
  const Object found = owned(
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
  const python::Lock lock(kWho);
  const Object module = python::import(kModule);
  const Object found = owned(PyObject_CallMethod(module.get(), "session", nullptr), "session");
  Session session;
  int checked = 0, record = 0;
  const char *family = nullptr, *options = nullptr, *others = nullptr;
  Py_ssize_t size = 0, others_size = 0;
  if (!PyArg_ParseTuple(found.get(), "iisy#y#", &checked, &record, &family, &options, &size,
                        &others, &others_size)) {
    rethrow("session");
  }
  TORCH_CHECK(size == sizeof(MhOptions) && others_size == size,
              "mps_fusion: metal_host has options of ", size, " bytes; this build takes ",
              sizeof(MhOptions));
  session.checked = checked != 0;
  session.record = record != 0;
  session.family = family;
  std::memcpy(&session.options, options, sizeof(MhOptions));
  std::memcpy(&session.others, others, sizeof(MhOptions));
  return session;
}

namespace {

std::mutex cache_lock;

// Never destroyed: a thread may still be launching while the process ends.
std::unordered_map<std::string, HostKernel>& cache() {
  static auto& kernels = *new std::unordered_map<std::string, HostKernel>;
  return kernels;
}

}  // namespace

const HostKernel& find_kernel(const plan::Kernel& kernel, bool checked) {
  const std::string key = (checked ? "checked|" : "") + pipeline_key(kernel);
  {
    const std::lock_guard guard(cache_lock);
    const auto found = cache().find(key);
    if (found != cache().end()) return found->second;
  }
  HostKernel made = ask(kernel, checked);  // unlocked: it may wait for the interpreter
  const std::lock_guard guard(cache_lock);
  return cache().emplace(key, std::move(made)).first->second;
}

void forget_kernels() {
  const std::lock_guard guard(cache_lock);
  cache().clear();
}

void report(const plan::Kernel& kernel, bool checked, const MhCounts& counts,
            const std::vector<MhBufferCounts>& per_buffer, const std::string& faults) {
  const python::Lock lock(kWho);
  const Object module = python::import(kModule);
  owned(PyObject_CallMethod(
            module.get(), "report", "sssiy#y#s", kernel.family.c_str(), kernel.name.c_str(),
            constants_text(kernel).c_str(), checked ? 1 : 0, reinterpret_cast<const char*>(&counts),
            Py_ssize_t{sizeof counts}, reinterpret_cast<const char*>(per_buffer.data()),
            static_cast<Py_ssize_t>(per_buffer.size() * sizeof(MhBufferCounts)), faults.c_str()),
        kernel.name.c_str());
}

TORCH_LIBRARY_IMPL(mps_fusion, CompositeExplicitAutograd, m) {
  m.impl("_forget_host_kernels", forget_kernels);
}

}  // namespace tmf::host
