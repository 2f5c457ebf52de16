// Dispatches of one call may overlap where a device can do that (CUDA: programmatic dependent
// launch). One that is started while an earlier one still runs asks only for what no dispatch of
// the call writes, and calls `inputs_ready` before it reads anything else or writes at all; then
// all dispatches before it are done. Elsewhere a barrier stands between them and nothing of this
// exists.
#pragma once
#include "math.h"

#ifndef MSL_GPU
inline void next_may_start() {}
inline void inputs_ready() {}
#else
inline void next_may_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
inline void inputs_ready() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#endif

// What a task waits for at the start of a dispatch.
struct Inputs {};
inline bool wait_for(thread const Inputs&, uint) {
  inputs_ready();
  return true;
}
