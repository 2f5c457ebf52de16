#include "cost.h"

#include <algorithm>

namespace tmf::plan {
namespace {

constexpr double kSchedulers = 4;
constexpr double kLanes = 32;
// Issue cycles of one SIMD group for 32 elements: four taps, SiLU (about 10) and two roundings;
// a normalisation of heads with its reduction.
constexpr double kConv = 40, kHeadNorm = 40;
// Issue cycles for one column of the state and one token: bf16, eight lanes a column.
constexpr double kRule = 33;
constexpr double kMultiplyAdds = 102;  // of a core and cycle, in 8x8 products
constexpr uint64_t kMaxGrid = 65535;   // of a grid's second and third dimension

}  // namespace

uint64_t bytes_of(const Dispatch& dispatch) {
  uint64_t bytes = 0;
  for (const Argument& a : dispatch.arguments) bytes += a.read + a.written;
  return bytes;
}

double projection_cycles(uint64_t k, uint64_t tiles_each, uint32_t nt, bool norm, uint64_t rows) {
  const double depth = static_cast<double>(k);
  const double products = static_cast<double>(tiles_each) * nt * kTile * 8 * depth / kMultiplyAdds;
  const double squares = norm ? static_cast<double>(std::min<uint64_t>(rows, 8)) * depth : 0;
  return products + squares / kLanes / kSchedulers;
}

double product_cycles(uint64_t multiply_adds) {
  return static_cast<double>(multiply_adds) / kMultiplyAdds;
}

double row_norm_cycles(uint64_t k) { return 6 * static_cast<double>(k) / kLanes / kSchedulers; }

double conv_cycles() { return 256 * 8 * kConv / kLanes / kSchedulers; }

double head_cycles(uint64_t elements) {
  return 8 * static_cast<double>(elements) * kHeadNorm / kLanes / kSchedulers;
}

double rule_cycles(const LayerCall& call, const Geometry& geometry, uint64_t tokens) {
  const double columns = 16.0 * tile_number(geometry.rule, 'r');
  const double keys = static_cast<double>(call.head_k_dim) / 128;
  return static_cast<double>(tokens) * columns * kRule * keys / kSchedulers;
}

double core_cycles(const LayerCall& call, uint64_t tokens, uint64_t columns) {
  const double keys = static_cast<double>(call.head_k_dim);
  const double values = static_cast<double>(columns);
  const double rule = values * kRule * keys / 128;
  const double rest = ((2 * keys + values) * kConv + (2 * keys + values) * kHeadNorm) / kLanes;
  return static_cast<double>(tokens) * (rule + rest) / kSchedulers;
}

double estimate_us(const DeviceSpec& device, uint64_t bytes, uint64_t threadgroups, double cycles) {
  const double memory = static_cast<double>(bytes) / (device.bandwidth_gb_s * 1e3);
  const double waves = static_cast<double>(ceil_div(threadgroups, device.cores));
  return std::max(memory, waves * cycles / (device.clock_ghz * 1e3));
}

double middle_estimate_us(const LayerCall& c, const DeviceSpec& device, const Geometry& geometry,
                          bool fused, uint64_t batch, uint64_t tokens) {
  const uint64_t rows = batch * tokens, io = size_of(c.io);
  const uint64_t keys = rows * c.key_dim(), values = rows * c.value_dim();
  const uint64_t state = 8 * batch * c.v_heads * c.head_k_dim * c.head_v_dim;
  // Windows before the block, the convolution's weight, gates, norm weight and mask.
  const uint64_t small = (2 * batch * (c.conv_taps - 1) + c.conv_taps) * c.conv_dim() * io +
                         8 * c.v_heads + c.head_v_dim * io + rows;
  if (fused) {
    const uint64_t bytes = (rows * c.in_features() + values) * io + state + small;
    return estimate_us(device, bytes, batch * c.v_heads, core_cycles(c, tokens, c.head_v_dim));
  }
  const uint64_t slices = c.head_v_dim / (16 * tile_number(geometry.rule, 'r'));
  const uint64_t scalars = rows * (4 * c.k_heads + 8 * c.v_heads);
  const double conv =
      estimate_us(device, 2 * rows * c.conv_dim() * io + small,
                  batch * ceil_div(tokens, 8) * ceil_div(c.conv_dim(), 256), conv_cycles());
  const double gates =
      estimate_us(device, keys * (2 * io + 8) + rows * 2 * c.v_heads * io + scalars + small,
                  batch * ceil_div(tokens * c.k_heads, 8), head_cycles(2 * c.head_k_dim));
  const double rule = estimate_us(device, 8 * keys + scalars + 2 * values * io + state + small,
                                  batch * c.v_heads * slices, rule_cycles(c, geometry, tokens));
  const double norm =
      estimate_us(device, 3 * values * io + small, batch * ceil_div(tokens * c.v_heads, 8),
                  head_cycles(c.head_v_dim));
  return std::max({conv, gates, rule, norm});
}

Block middle_block(const LayerCall& c, const DeviceSpec& device, const Geometry& geometry,
                   bool fused) {
  const auto fits = [&](uint64_t batch, uint64_t tokens) {
    return middle_estimate_us(c, device, geometry, fused, batch, tokens) <=
           device.dispatch_limit_us;
  };
  // The largest value in [1, most] for which `ok` holds, 1 if there is none; ok is monotone.
  const auto largest = [](uint64_t most, const auto& ok) {
    uint64_t low = 1, high = most;
    while (low < high) {
      const uint64_t middle = high - (high - low) / 2;
      if (ok(middle)) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  };
  const uint64_t few = std::min<uint64_t>(c.tokens, 8);
  const uint64_t batch =
      largest(std::min(c.batch, kMaxGrid), [&](uint64_t b) { return fits(b, few); });
  uint64_t tokens = geometry.block;
  if (tokens == 0) tokens = largest(c.tokens, [&](uint64_t t) { return fits(batch, t); });
  // Blocks of whole eights, as the convolution takes tokens.
  if (geometry.block == 0 && tokens < c.tokens && tokens > 8) tokens -= tokens % 8;
  return {batch, std::min(tokens, c.tokens)};
}

uint64_t minimum_bytes(const LayerCall& c) {
  const uint64_t io = size_of(c.io);
  const uint64_t weights = c.hidden * c.in_features() + c.value_dim() * c.hidden;
  const uint64_t small = c.conv_dim() * c.conv_taps + c.head_v_dim + (c.input_norm ? c.hidden : 0) +
                         (c.float_a ? 0 : c.v_heads) + (c.float_dt ? 0 : c.v_heads);
  const uint64_t gates = 4 * ((c.float_a ? c.v_heads : 0) + (c.float_dt ? c.v_heads : 0));
  const uint64_t reads = c.state_in ? 2 : 1;
  const uint64_t states =
      c.batch * reads *
      (4 * c.v_heads * c.head_k_dim * c.head_v_dim + io * c.conv_dim() * (c.conv_taps - 1));
  return (weights + small) * io + gates + states + 2 * c.rows() * c.hidden * io;
}

}  // namespace tmf::plan
