// Shape + device + cuts + geometry -> the dispatches of one call.
#pragma once

#include "call.h"
#include "chunks.h"
#include "cuts.h"
#include "devices.h"
#include "geometry.h"
#include "program.h"

namespace tmf::plan {

// A layer call. Throws Refusal if a number does not fit what the kernels take. The buffers that the
// caller has to supply carry the names of the op's arguments, `conv_in`, `conv_out`, `state_in`,
// `state_out` and `output`; all others are scratch.
Program plan_layer(const LayerCall& call, const DeviceSpec& device, const Geometry& geometry,
                   const Cuts& cuts);

// The same as chunks of at most `chunk_rows` rows, one program each, to run in order over the parts
// of the tensors that belong to a chunk. Later tokens of a sequence start from the states that its
// earlier ones left in `conv_out` and `state_out`. Throws Refusal, too, if the whole call does not
// fit the device's working set.
std::vector<ChunkProgram> plan_chunks(const LayerCall& call, const DeviceSpec& device,
                                      const Geometry& geometry, const Cuts& cuts);

// output (rows, n) = x (rows, k) * weight (n, k)^T.
struct LinearCall {
  uint64_t rows = 0, k = 0, n = 0;
  Io io = Io::f32;
};
Program plan_linear(const LinearCall& call, const DeviceSpec& device, const Geometry& geometry);

}  // namespace tmf::plan
