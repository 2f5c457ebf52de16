// Kernels of this machine, as torch_mps_fusion/host_kernels.py compiles them.
#pragma once

#include <string>
#include <vector>

#include "plan/program.h"
#include "torch_mps_fusion/metal_host/runtime/abi.h"

namespace tmf::host {

using Launcher = decltype(&mh_launch);

// How launches run: asked once for each program.
struct Session {
  bool checked = false;  // with the checking build
  bool record = false;   // the counters of every launch are handed back
  std::string family;    // whose launches run with `options`; empty: all
  MhOptions options{}, others{};

  const MhOptions& options_of(const plan::Kernel& kernel) const {
    return family.empty() || family == kernel.family ? options : others;
  }
};

struct HostKernel {
  Launcher launch = nullptr;
  MhEntry entry = nullptr;
  std::vector<std::string> names;  // of the buffers, by index
};

Session begin_session();

// Compiled on first use, once for each name and set of constants. Throws with what is missing.
const HostKernel& find_kernel(const plan::Kernel& kernel, bool checked);

// The next call of each kernel asks for it again. No launch may be under way.
void forget_kernels();

// After a launch: keeps the counters if they are recorded, throws if there were faults.
void report(const plan::Kernel& kernel, bool checked, const MhCounts& counts,
            const std::vector<MhBufferCounts>& per_buffer, const std::string& faults);

}  // namespace tmf::host
