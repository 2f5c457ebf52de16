// An encoder that keeps what it is told and runs nothing: the host's share of a call, for
// `benchmarks overhead`. A kernel costs a look-up by its pipeline key, as on Metal.
#pragma once

#include "encoder.h"

namespace tmf::host {

// Whether programs of CPU tensors are recorded instead of run.
bool recording();

// Encodes the program into the recording of this thread, which replaces the one before.
void record_calls(const plan::Program& program, const std::vector<BufferView>& buffers);

}  // namespace tmf::host
