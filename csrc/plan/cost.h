// What a dispatch is estimated to take: the larger of two times,
//   memory: bytes it reads and writes, each once (weights once a pass), over the nominal bandwidth;
//   work:   waves * cycles over the clock, where a threadgroup takes `cycles` of its core and
//           `waves` is threadgroups over cores, rounded up.
// Cycles come from static counts of the Apple ISA (a scheduler issues one SIMD-group instruction a
// cycle, four schedulers a core) and from public instruction costs. Derived, not measured: good for
// keeping a dispatch far from the watchdog, not for predicting a time.
#pragma once

#include <cstdint>

#include "call.h"
#include "devices.h"
#include "geometry.h"
#include "program.h"

namespace tmf::plan {

uint64_t bytes_of(const Dispatch& dispatch);

// Core cycles of one threadgroup of each kernel.
double projection_cycles(uint64_t k, uint64_t tiles_each, uint32_t nt, bool norm, uint64_t rows);
double product_cycles(uint64_t multiply_adds);
double row_norm_cycles(uint64_t k);
double conv_cycles();
double head_cycles(uint64_t elements);  // norms over heads: eight heads of so many elements
double rule_cycles(const LayerCall& call, const Geometry& geometry, uint64_t tokens);
double core_cycles(const LayerCall& call, uint64_t tokens, uint64_t columns);

double estimate_us(const DeviceSpec& device, uint64_t bytes, uint64_t threadgroups, double cycles);

// The slowest of the dispatches between the projections, for so many sequences and tokens.
double middle_estimate_us(const LayerCall& call, const DeviceSpec& device, const Geometry& geometry,
                          bool fused, uint64_t batch, uint64_t tokens);

// Sequences and tokens of one dispatch between the projections, as many as stay below the device's
// limit: all sequences if eight tokens of each do, else fewer.
struct Block {
  uint64_t batch, tokens;
};
Block middle_block(const LayerCall& call, const DeviceSpec& device, const Geometry& geometry,
                   bool fused);

// The least that any implementation reads and writes: weights once, states once with K - 1 columns,
// input and output once.
uint64_t minimum_bytes(const LayerCall& call);

}  // namespace tmf::plan
