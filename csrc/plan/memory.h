// What a call holds in memory, against what the device can keep at hand.
#pragma once

#include "call.h"
#include "devices.h"
#include "program.h"

namespace tmf::plan {

// Bytes of the tensors that a call is given and gives back.
uint64_t tensor_bytes(const LayerCall& call);

// Bytes that the caller has to allocate beside them.
uint64_t scratch_bytes(const Program& program);

// Throws Refusal if so many bytes are more than the device's working set; `what` is the argument
// whose size decides.
void check_memory(const DeviceSpec& device, const char* what, uint64_t bytes);

}  // namespace tmf::plan
