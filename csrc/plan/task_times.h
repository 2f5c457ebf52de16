// What the tasks of a persistent dispatch take by estimate. As in cost.h, derived from nominal
// figures and static counts, not measured; for pictures, nothing is chosen by it.
#pragma once

#include "call.h"
#include "devices.h"
#include "program.h"

namespace tmf::plan {

// Fills in TaskProgram::times_us, touches given: the larger of
//   memory: its part of the weights and states, and what it writes, at an equal share of the
//           nominal bandwidth for each worker; what crosses workers is read from a cache;
//   work:   its core cycles, where workers of one core share it.
void add_task_times(Program& program, const LayerCall& call, const DeviceSpec& device);

}  // namespace tmf::plan
