// Happens-before with Metal's rules.
//
// A barrier orders, among the threads that meet, the memory spaces that its flags name. Relaxed
// atomics order nothing by themselves: a fence before a write and a fence behind the read that
// sees it do, in the spaces both name, between threads that lie in the narrower of both scopes.
#pragma once
#include "state.h"

namespace mh {
void meet(Fiber** fibers, u32 count, u32 flags);  // a barrier of these threads
void fence(Fiber* f, u32 flags, u32 scope);
void atomic_read(Fiber* f, const void* place);
void take_releases(Fiber* f, const std::vector<Release>& releases);
void atomic_written(Fiber* f, const void* place, bool read_too);
// did what thread `id` (thread + 1) did at its time `time` happen before what f does now?
inline bool before(u32 id, u32 time, const Fiber* f, Space space) {
  u32 thread = id - 1;
  if (thread == f->id) return true;
  const Clock* known = f->order.known[space].get();
  if (!known) return false;
  const std::vector<u32>* row = known->find(thread / S->threads);
  return row && (*row)[thread % S->threads] >= time;
}
}  // namespace mh
