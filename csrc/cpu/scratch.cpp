#include "cpu/scratch.h"

#include <cstddef>
#include <memory>
#include <new>

namespace tmf::cpu {
namespace {

constexpr std::align_val_t kLine{64};

struct Free {
  void operator()(float* p) const { ::operator delete(p, kLine); }
};

}  // namespace

float* thread_scratch(int64_t floats) {
  thread_local std::unique_ptr<float, Free> memory;
  thread_local int64_t size = 0;
  if (floats > size) {
    memory.reset();
    size = 0;
    memory.reset(static_cast<float*>(::operator new(static_cast<size_t>(floats) * 4, kLine)));
    size = floats;
  }
  return memory.get();
}

}  // namespace tmf::cpu
