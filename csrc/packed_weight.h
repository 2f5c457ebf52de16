// Packed weights (torch_mps_fusion/packing.py) as the ops see them: names, checks, and back to
// rows for aten's products.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

namespace tmf {

// The lane map in a weight_format, "apple" or "nvidia"; empty if it is no packed format.
std::string_view lanes_of(std::string_view weight_format);
std::string packed_format(std::string_view lanes);
// 'rows', 'tiles16-apple', ..: all there are.
std::string weight_format_names();

// packed (flat, contiguous) into rows [padded_n, k] (contiguous), padded rows zero. k % 32 == 0.
void unpack(const at::Tensor& packed, std::string_view lanes, const at::Tensor& rows);

}  // namespace tmf
