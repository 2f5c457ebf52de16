// Chooses the instruction set, once.
#include "cpu/isa.h"

#include <c10/util/Exception.h>
#include <torch/library.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "cpu/kernels.h"

namespace tmf::cpu {
namespace {

// Best first.
std::vector<const Isa*> available() {
  std::vector<const Isa*> found;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    found.push_back(&isa_avx512);
  }
  if (avx2) found.push_back(&isa_avx2);
#endif
  found.push_back(&isa_baseline);
  return found;
}

const Isa* choose() {
  const auto found = available();
  const char* wanted = std::getenv("TMF_CPU_ISA");
  if (wanted == nullptr || *wanted == '\0') return found.front();
  std::string names;
  for (const Isa* candidate : found) {
    if (std::string(wanted) == candidate->name) return candidate;
    names += names.empty() ? candidate->name : std::string(", ") + candidate->name;
  }
  TORCH_CHECK(false, "TMF_CPU_ISA is '", wanted, "', but this processor has: ", names);
}

}  // namespace

const Isa& isa() {
  static const Isa* chosen = choose();
  return *chosen;
}

const char* isa_name() { return isa().name; }

namespace {

std::string isa_op() { return isa_name(); }

}  // namespace

TORCH_LIBRARY_IMPL(mps_fusion, CompositeExplicitAutograd, m) { m.impl("_cpu_isa", isa_op); }

}  // namespace tmf::cpu
