// The persistent dispatch: all stages from the convolution on, and the input projection if it is in
// the same cut; and the dispatch that commits its states to tensors updated in place.
#pragma once

#include "middle.h"

namespace tmf::plan {

struct Persistent {
  bool in_proj = false;
  View w_in, x, norm, w_out, residual, output;  // norm, residual: with a buffer if used
  Buffers buffers;
  View control;
};

void add_persistent(Builder& builder, const LayerCall& call, const DeviceSpec& device,
                    const Geometry& geometry, const Persistent& persistent);

// Whether it is the instrumented build: it binds `times` and has a threadgroup for its clock.
inline bool timed(const Dispatch& dispatch) {
  const auto found = dispatch.kernel.constants.find(kTimes);
  return found != dispatch.kernel.constants.end() && found->second != 0;
}

constexpr uint32_t kPersistentLevel = 320;  // Metal 3.2

// Rows of a persistent dispatch at most: the device's threshold, and what the shader keeps.
inline uint64_t most_rows(const DeviceSpec& device) {
  return std::min<uint64_t>(device.row_threshold, 32);
}

// Copies states that are contiguous to conv_out and state_out of `to`, laid out as `call` says,
// unless the dispatch before failed. `control`: its control block.
void add_commit(Builder& builder, const LayerCall& call, const View& control, const View& conv,
                const View& state, const Buffers& to);

// The call with contiguous states to write, heads in the order of those it reads.
LayerCall with_new_states(const LayerCall& call);

// Fills in what each task touches of the buffers that its dispatch writes.
void add_touches(Program& program, const LayerCall& call);

}  // namespace tmf::plan
