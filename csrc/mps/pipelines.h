// Metal libraries and pipelines of the embedded shaders, made on first use and kept.
#pragma once

#import <Metal/Metal.h>

#include <map>
#include <mutex>
#include <string>

#include "plan/program.h"

namespace tmf::mps {

class Pipelines {
 public:
  // The pipeline of a kernel, made if it is new. One lock: threads that arrive together make one.
  // Throws with Metal's message; nothing of a failed attempt is kept.
  id<MTLComputePipelineState> get(id<MTLDevice> device, const plan::Kernel& kernel);

 private:
  id<MTLLibrary> library(id<MTLDevice> device, const plan::Kernel& kernel);
  id<MTLComputePipelineState> make(id<MTLDevice> device, const plan::Kernel& kernel,
                                   const std::string& key);

  std::mutex mutex_;
  // Owned, and never given up: their number is bounded by the kernels and their constants.
  std::map<std::string, id<MTLLibrary>> libraries_;  // by family and macros
  std::map<std::string, id<MTLComputePipelineState>> pipelines_;
};

}  // namespace tmf::mps
