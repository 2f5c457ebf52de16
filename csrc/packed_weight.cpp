#include "packed_weight.h"

#include <array>
#include <vector>

namespace tmf {
namespace {

constexpr std::string_view kPrefix = "tiles16-";
constexpr std::array<std::string_view, 2> kLanes{"apple", "nvidia"};
constexpr int64_t kTile = 16, kBlockK = 32;

// Packing permutes the bits of an index, so that unpacking is a view with its dims permuted: no
// table, no temporary. Dims by letter, outermost first; in a block of 16 outputs and 32 k
//   t s   tile of 16 outputs, step of 32 k       f g   bits of the fragment, (k % 8) / 2
//   nvidia: H n / 8, N n % 8, P k / 8, e k % 2
//   apple:  H Q R e bits of n, A B the bits of k / 8, C k % 2
struct Order {
  std::string_view packed, packed_float, rows;
};
constexpr Order kNvidia{"tsfNPgHe", "tsfgNPHe", "tHNsPfge"};
constexpr Order kApple{"tsfAQBCRgHe", "tsfgAQBCRHe", "tHQResABfgC"};

}  // namespace

std::string_view lanes_of(std::string_view weight_format) {
  for (std::string_view lanes : kLanes) {
    if (weight_format.substr(0, kPrefix.size()) == kPrefix &&
        weight_format.substr(kPrefix.size()) == lanes) {
      return lanes;
    }
  }
  return "";
}

std::string packed_format(std::string_view lanes) {
  return std::string(kPrefix) + std::string(lanes);
}

std::string weight_format_names() {
  std::string names = "'rows'";
  for (std::string_view lanes : kLanes) names += ", '" + packed_format(lanes) + "'";
  return names;
}

void unpack(const at::Tensor& packed, std::string_view lanes, const at::Tensor& rows) {
  const Order& order = lanes == "nvidia" ? kNvidia : kApple;
  const std::string_view from = packed.element_size() == 4 ? order.packed_float : order.packed;
  std::vector<int64_t> sizes, dims;
  for (const char dim : from) {
    sizes.push_back(dim == 't'   ? rows.size(0) / kTile
                    : dim == 's' ? rows.size(1) / kBlockK
                    : dim == 'N' ? 8
                    : dim == 'P' ? 4
                                 : 2);
  }
  for (const char dim : order.rows) dims.push_back(static_cast<int64_t>(from.find(dim)));
  const at::Tensor in_order = packed.view(sizes).permute(dims);
  rows.view(in_order.sizes()).copy_(in_order);
}

}  // namespace tmf
