#include "wait.h"

#include "report.h"

namespace mh {
namespace {
template <class F>
void other_lanes(Fiber* f, F each) {
  u32 begin = f->index & ~31u, end = std::min(begin + 32, f->group->threads);
  for (u32 i = begin; i < end; ++i)
    if (i != f->index) each(f->group->fibers[i]);
}
[[noreturn]] void waits_for_own_simdgroup(Fiber* f) {
  fail("simdgroup-spin",
       who(f) + " waits at " + place(f->wait.pc) + " for " + name_of(f->wait.place) +
           words(", which thread %u of its own simdgroup writes", f->wait.writer->index));
  leave();
}
}  // namespace

void lane_wrote(Fiber* f, const void* place) {
  f->last_pc = nullptr;
  other_lanes(f, [&](Fiber& x) {
    if (x.state == DONE || x.last_place != place || !x.last_pc) return;
    x.wait = {f, place, x.last_pc, false, false};
    f->simd->waits++;
  });
}

void lane_read(Fiber* f, const void* place, const void* pc, bool repeated) {
  f->last_place = place;
  f->last_pc = repeated ? pc : nullptr;
  if (!f->simd->waits) return;
  other_lanes(f, [&](Fiber& x) {
    if (x.wait.writer == f && x.wait.place == place && x.wait.pc == pc) x.wait.writer = nullptr;
  });
  Wait& w = f->wait;
  if (w.writer && w.place == place && w.pc == pc) {
    w.again = true;
    if (w.passed) waits_for_own_simdgroup(f);
  }
}

void went_on_slow(Fiber* f) {
  f->wait.writer = nullptr;
  other_lanes(f, [&](Fiber& x) {
    if (x.wait.writer != f) return;
    x.wait.passed = true;
    if (x.wait.again) waits_for_own_simdgroup(&x);
  });
}
}  // namespace mh
