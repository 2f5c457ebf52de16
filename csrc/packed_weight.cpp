#include "packed_weight.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <vector>

namespace tmf {
namespace {

constexpr std::string_view kPrefix = "tiles16-";
constexpr std::array<std::string_view, 2> kLanes{"apple", "nvidia"};
constexpr int64_t kTile = 16, kBlockK = 32;
constexpr int64_t kChunk = int64_t{1} << 20;  // elements of a temporary, or one row of tiles

// Where element (n, k) of a 16 x 32 block lies in its packed form: as packing.packed_index.
int64_t packed_place(int64_t n, int64_t k, int64_t itemsize, bool nvidia) {
  const int64_t position = 2 * (k / 8) + k % 2, fragment = (k % 8) / 2;
  const int64_t quarter = 2 * (fragment % 2) + n / 8;
  int64_t lane, e;
  if (nvidia) {
    lane = 4 * (n % 8) + position / 2;
    e = position % 2;
  } else {
    const int64_t pair = n % 8 / 2;
    lane = 16 * (position / 4) + 8 * (pair / 2) + 2 * (position % 4) + pair % 2;
    e = n % 2;
  }
  const int64_t value = 2 * quarter + e, word = 16 / itemsize;
  return fragment / 2 * 256 + value / word * (32 * word) + lane * word + value % word;
}

// [512]: the packed place of each element of a row-major block.
at::Tensor block_order(int64_t itemsize, bool nvidia, c10::Device device) {
  std::vector<int64_t> order;
  for (int64_t n = 0; n < kTile; ++n) {
    for (int64_t k = 0; k < kBlockK; ++k) order.push_back(packed_place(n, k, itemsize, nvidia));
  }
  return at::from_blob(order.data(), {kTile * kBlockK}, at::kLong).to(device, at::kLong, false, true);
}

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

at::Tensor unpack(const at::Tensor& packed, std::string_view lanes, int64_t padded_n, int64_t k) {
  const int64_t tiles = padded_n / kTile, steps = k / kBlockK;
  const at::Tensor order =
      block_order(packed.element_size(), lanes == "nvidia", packed.device());
  const at::Tensor blocks = packed.view({tiles, steps, kTile * kBlockK});
  at::Tensor rows = at::empty({tiles, kTile, steps, kBlockK}, packed.options());
  const int64_t chunk = std::max<int64_t>(1, kChunk / (kTile * k));
  for (int64_t t = 0; t < tiles; t += chunk) {
    const int64_t n = std::min(chunk, tiles - t);
    const at::Tensor part = blocks.narrow(0, t, n).index_select(2, order);
    rows.narrow(0, t, n).copy_(part.view({n, steps, kTile, kBlockK}).transpose(1, 2));
  }
  return rows.view({padded_n, k});
}

}  // namespace tmf
