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

// The dtype as Python writes it.
inline std::string dtype_name(c10::ScalarType type) {
  switch (type) {
    case c10::kFloat:
      return "float32";
    case c10::kDouble:
      return "float64";
    case c10::kHalf:
      return "float16";
    case c10::kBFloat16:
      return "bfloat16";
    case c10::kBool:
      return "bool";
    case c10::kInt:
      return "int32";
    case c10::kLong:
      return "int64";
    default:
      return c10::toString(type);
  }
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
