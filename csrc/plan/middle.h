// What lies between the projections: convolution, gates, rule and gated norm, for blocks of
// sequences and tokens.
#pragma once

#include "builder.h"
#include "cuts.h"
#include "shaders/include/abi.h"

namespace tmf::plan {

// Whole buffers of a layer; those that the call does not have are without one.
struct Buffers {
  View hidden, conv_weight, a_log, dt_bias, norm_weight, mask;
  View conv_in, conv_out, state_in, state_out;
  View y, g;
};

inline uint64_t y_stride(const LayerCall& c) { return padded_rows(c.in_features()); }

// Bytes from the first to the last element of `batch` sequences.
uint64_t conv_span(const LayerCall& call, const ConvLayout& layout, uint64_t batch);
uint64_t state_span(const LayerCall& call, const StateLayout& layout, uint64_t batch);
uint64_t mask_span(const LayerCall& call, uint64_t batch);

// Tokens [first, first + count) of `batch` sequences. Later blocks start from the state that the
// first one wrote.
GdnArgs gdn_args(const LayerCall& call, uint64_t batch, uint64_t first, uint64_t count);

// The stage buffers that a variant needs are added to the builder.
void add_middle(Builder& builder, const LayerCall& call, const DeviceSpec& device,
                const Geometry& geometry, const Cuts& cuts, const Buffers& buffers);

}  // namespace tmf::plan
