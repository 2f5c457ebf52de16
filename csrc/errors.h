// How an argument is refused: the op, the argument, what came and what is accepted.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <sstream>
#include <string>

namespace tmf {

template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

[[noreturn]] inline void refuse(const char* op, const std::string& argument, const std::string& got,
                                const std::string& accepted) {
  TORCH_CHECK_VALUE(false, "mps_fusion::", op, ": ", argument, ": got ", got,
                    "; accepted: ", accepted);
}

[[noreturn]] inline void refuse_unsupported(const char* op, const std::string& reason) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "mps_fusion::", op, ": ", reason);
}

}  // namespace tmf
