// A lane that waits for a lane of its own simdgroup.
//
// The lanes of a simdgroup have no independent progress: while one polls, the others may stand
// still. Reported when lane A has read the same value of an atomic twice, lane B of the same
// simdgroup writes it, A reads it again at the same place, and B goes on (returns, or comes to a
// barrier or a simdgroup operation) without having come to that read itself. A lane that retries
// because another one succeeded (a compare-exchange loop without a lock) never reads one value
// twice.
#pragma once
#include "state.h"

namespace mh {
void lane_wrote(Fiber* f, const void* place);
void lane_read(Fiber* f, const void* place, const void* pc, bool repeated);
void went_on_slow(Fiber* f);
inline void went_on(Fiber* f) {
  if (f->simd->waits) went_on_slow(f);
}
void lane_returned(Fiber* f);
}  // namespace mh
