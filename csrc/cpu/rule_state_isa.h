// A tile of the state: [Dk][kColumns] in scratch, from and to either storage order.
#pragma once

#include "cpu/simd.h"

namespace tmf::cpu::TMF_ISA {

constexpr int kTileVectors = TMF_TILE_VECTORS;
constexpr int kColumns = kTileVectors * kLanes;

TMF_INLINE float* state_at(const View& s, int64_t b, int64_t h, int64_t column) {
  return (float*)s.data + b * s.stride[0] + h * s.stride[1] + column * s.stride[3];
}

static void load_tile(const RuleArgs& r, int64_t b, int64_t h, int64_t column, float* tile) {
  if (r.state_in.data == nullptr) {
    for (int64_t i = 0; i < r.Dk * kColumns; i += kLanes) store(tile + i, vf{});
    return;
  }
  const float* s = state_at(r.state_in, b, h, column);
  const int64_t key_stride = r.state_in.stride[2], column_stride = r.state_in.stride[3];
  if (column_stride == 1) {
    for (int64_t row = 0; row < r.Dk; ++row) {
      for (int n = 0; n < kColumns; n += kLanes) {
        store(tile + row * kColumns + n, load(s + row * key_stride + n));
      }
    }
    return;
  }
  for (int64_t row = 0; row < r.Dk; row += kLanes) {
    for (int n = 0; n < kColumns; n += kLanes) {
      vf square[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) square[i] = load(s + (n + i) * column_stride + row);
      transpose(square);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) store(tile + (row + i) * kColumns + n, square[i]);
    }
  }
}

static void store_tile(const RuleArgs& r, int64_t b, int64_t h, int64_t column, const float* tile) {
  float* s = state_at(r.state_out, b, h, column);
  const int64_t key_stride = r.state_out.stride[2], column_stride = r.state_out.stride[3];
  if (column_stride == 1) {
    for (int64_t row = 0; row < r.Dk; ++row) {
      for (int n = 0; n < kColumns; n += kLanes) {
        store(s + row * key_stride + n, load(tile + row * kColumns + n));
      }
    }
    return;
  }
  for (int64_t row = 0; row < r.Dk; row += kLanes) {
    for (int n = 0; n < kColumns; n += kLanes) {
      vf square[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) square[i] = load(tile + (row + i) * kColumns + n);
      transpose(square);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) store(s + (n + i) * column_stride + row, square[i]);
    }
  }
}

}  // namespace tmf::cpu::TMF_ISA
