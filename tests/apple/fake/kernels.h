// Shader texts compiled by metal_host, and run by its C interface.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/abi.h"

namespace fake {

struct BufferParameter {
  uint32_t index, size, align;
  bool read_only, reference, optional;
};

struct CompiledKernel {
  MhEntry entry = nullptr;
  decltype(&mh_launch) launch = nullptr;
  uint32_t max_threads = 0;
  std::vector<BufferParameter> buffers;
};

using Constants = std::map<uint32_t, uint32_t>;
using CompiledKernels = std::map<std::string, CompiledKernel>;

// The kernels of a text by host name; throws std::runtime_error with the compiler's message.
const CompiledKernels& compile(const std::string& text, const Constants& constants,
                               uint32_t language);

// Declared function constants by id: true for bool, false for uint.
std::map<uint32_t, bool> declared_constants(const std::string& text);

struct Span {
  void* data = nullptr;
  uint64_t bytes = 0;
};
// Runs a kernel; returns the faults that metal_host found, or "".
std::string run(const CompiledKernel& kernel, const std::array<uint64_t, 3>& grid,
                const std::array<uint64_t, 3>& group, const std::vector<Span>& buffers);

}  // namespace fake
