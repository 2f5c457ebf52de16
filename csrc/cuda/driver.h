// The few calls of CUDA's driver that we make, opened at run time: nothing of CUDA is needed to
// build. Names, values and signatures are those of its public C interface.
#pragma once

#include <cstddef>
#include <string>

namespace tmf::cuda {

using Result = int;  // CUresult; 0 is success
using Device = int;  // CUdevice
using Context = struct CUctx_st*;
using Module = struct CUmod_st*;
using Function = struct CUfunc_st*;
using Stream = struct CUstream_st*;

// CUdevice_attribute
constexpr int kMajor = 75, kMinor = 76;
// CUfunction_attribute
constexpr int kMaxThreads = 0;
// CUjit_option
constexpr int kErrorLog = 5, kErrorLogBytes = 6;
// CUstreamCaptureMode
constexpr int kCaptureRelaxed = 2;
// CUlaunchAttributeID
constexpr unsigned kProgrammaticStreamSerialization = 6;

// CUlaunchAttribute, with the one value that we give.
struct LaunchAttribute {
  unsigned id = kProgrammaticStreamSerialization;
  alignas(8) int value = 1;
  std::byte rest[60]{};
};
static_assert(sizeof(LaunchAttribute) == 72);

// CUlaunchConfig
struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes = 0;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

struct Driver {
  Result (*init)(unsigned);
  Result (*error_name)(Result, const char**);
  Result (*error_string)(Result, const char**);
  Result (*device_get)(Device*, int);
  Result (*device_attribute)(int*, int, Device);
  Result (*device_name)(char*, int, Device);
  Result (*primary_context)(Context*, Device);
  Result (*current_context)(Context*);
  Result (*push_context)(Context);
  Result (*pop_context)(Context*);
  Result (*module_load)(Module*, const void*, unsigned, int*, void**);
  Result (*module_function)(Function*, Module, const char*);
  Result (*function_attribute)(int*, int, Function);
  Result (*capture_mode)(int*);
  Result (*is_capturing)(Stream, int*);  // CUstreamCaptureStatus; 0 is none
  Result (*launch)(const LaunchConfig*, Function, void**, void**);
};

// The driver, opened and started on first use; null where that fails, see `why_no_driver`.
const Driver* driver();
const std::string& why_no_driver();

// "CUDA_ERROR_NAME (what CUDA says about it)".
std::string error_text(Result result);

// Throws, naming what was being done.
void check(Result result, const std::string& what);

// PyTorch's current stream of a device. Throws where PyTorch is built without CUDA.
Stream current_stream(int device);

// Makes the primary context of a device, which is PyTorch's, current for a scope: a thread that has
// used no CUDA yet has none.
class Current {
 public:
  explicit Current(int device);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  bool pushed_ = false;
};

}  // namespace tmf::cuda
