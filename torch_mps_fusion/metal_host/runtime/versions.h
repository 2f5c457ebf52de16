// Older values of device atomics, and which of them a load may see.
//
// Relaxed atomics of one place have one order, and nothing else does: a load may see any write of
// that place, unless a later one was written or seen before (order.h), by whichever thread. Only
// loads look back; what reads and writes in one step sees the newest value.
#pragma once
#include "state.h"

namespace mh {
u64 load_version(Fiber* f, const void* place, u64 newest);  // and takes what it carries
void note_version(Fiber* f, const void* place, u64 old, u64 value);
void saw_newest(Fiber* f, const void* place);
}  // namespace mh
