// Barriers, fences and operations between lanes.
#include "order.h"
#include "report.h"
#include "schedule.h"
#include "shadow.h"
#include "wait.h"

namespace mh {
namespace {
template <class F>
void lanes(Fiber* f, F each) {
  u32 begin = f->index & ~31u, end = std::min(begin + 32, f->group->threads);
  for (u32 i = begin; i < end; ++i) each(f->group->fibers[i]);
}

void arrive(Fiber* f, Site site) {
  Simd* s = f->simd;
  went_on(f);
  f->site = site;
  f->spun = false;
  f->read_pc = nullptr;
  if (!s->arrived) {
    s->site = site;
  } else if (!(s->site == site)) {
    fail("simdgroup-divergence",
         who(f) + " is at " + place(site) + ", other lanes wait at " + place(s->site));
    leave();
  }
  s->arrived++;
}

void release(Fiber* f) {
  Simd* s = f->simd;
  note_meeting(s->quiet, s->live);
  s->arrived = 0;
  lanes(f, [&](Fiber& x) {
    if (x.state == AT_SIMD) make_ready(&x);
  });
}

void need_active(Simd* s, Group* g) {
  if (s->need == MH_NEED_ALL && s->live_mask != ~0u) {
    report("inactive-lanes", u32(s->site.line), 2,
           words("threadgroup %u: a matrix operation at ", g->number) + place(s->site) +
               words(" with %u of 32 lanes active", s->live));
  } else if (s->live_mask != s->full_mask && S->checking() && !S->o.allow_inactive_lanes) {
    report("inactive-lanes", u32(s->site.line), 0,
           words("threadgroup %u: a simdgroup operation at ", g->number) + place(s->site) +
               words(" while %u of its lanes have returned",
                     u32(__builtin_popcount(s->full_mask)) - s->live));
  }
}

// All live lanes have come: `f` is any of them.
void complete(Fiber* f) {
  Simd* s = f->simd;
  need_active(s, f->group);
  s->used_mask[s->parity] = s->live_mask;
  if (s->combine) s->combine(s->slots[s->parity], s->live_mask);
  s->parity ^= 1;
  release(f);
}

void meet_group(Group* g) {
  std::vector<Fiber*> all;
  for (u32 i = 0; i < g->threads; ++i) all.push_back(&g->fibers[i]);
  meet(all.data(), u32(all.size()), g->barrier_flags);
}
void complete_simd_barrier(Fiber* f, u32 flags) {
  if (S->checking()) {
    std::vector<Fiber*> live;
    lanes(f, [&](Fiber& x) {
      if (x.state != DONE) live.push_back(&x);
    });
    meet(live.data(), u32(live.size()), flags);
  }
  f->simd->parity ^= 1;
  release(f);
}
}  // namespace

void lane_returned(Fiber* f) {
  Simd* s = f->simd;
  s->live--;
  s->live_mask &= ~(1u << f->lane);
  if (!s->arrived || s->arrived != s->live) return;
  Fiber* waiting = nullptr;
  lanes(f, [&](Fiber& x) {
    if (x.state == AT_SIMD) waiting = &x;
  });
  if (s->combine || s->need) {
    complete(waiting);
  } else {
    need_active(s, f->group);
    s->used_mask[s->parity] = s->live_mask;
    complete_simd_barrier(waiting, 0);
  }
}
}  // namespace mh

using namespace mh;
extern "C" {
u32 mh_lane() { return current->lane; }
u32 mh_live_lanes() { return current->simd->live_mask; }
u32 mh_ticks() { return u32(S->counts.switches); }

void mh_fence(u32 flags, u32 order, u32 scope) {
  S->counts.fences++;
  if (order == 0 || !S->checking()) return;
  fence(current, flags, scope);
}

void mh_barrier(u32 flags, const char* file, int line) {
  Fiber* f = current;
  Group* g = f->group;
  Site site{file, line};
  went_on(f);
  f->site = site;
  f->spun = false;
  f->read_pc = nullptr;
  if (!g->arrived) {
    g->site = site;
    g->barrier_flags = flags;
  } else if (!(g->site == site)) {
    fail("barrier-divergence",
         who(f) + " is at " + place(site) + ", other threads wait at " + place(g->site));
    leave();
  }
  if (g->live != g->threads) {
    fail("barrier-divergence", words("threadgroup %u: threads come to the barrier at ", g->number) +
                                   place(site) +
                                   words(" after %u have returned", g->threads - g->live));
    leave();
  }
  if (f->simd->arrived) {
    fail("simdgroup-divergence", who(f) + " is at the barrier at " + place(site) +
                                     ", other lanes of its simdgroup wait at " +
                                     place(f->simd->site));
    leave();
  }
  if (++g->arrived < g->threads) {
    f->state = AT_BARRIER;
    switch_out();
    return;
  }
  S->counts.barriers++;
  g->events++;
  note_meeting(g->quiet, g->threads);
  g->arrived = 0;
  if (S->checking()) meet_group(g);
  for (u32 i = 0; i < g->threads; ++i)
    if (&g->fibers[i] != f) make_ready(&g->fibers[i]);
  if (S->exploring()) yield(false);
}

void mh_simd_barrier(u32 flags, const char* file, int line) {
  Fiber* f = current;
  Simd* s = f->simd;
  arrive(f, {file, line});
  s->combine = nullptr;
  s->need = MH_NEED_LIVE;
  if (s->arrived < s->live) {
    f->state = AT_SIMD;
    switch_out();
  } else {
    S->counts.simd_barriers++;
    complete_simd_barrier(f, flags);
  }
}

void mh_exchange(void* v, u32 n, u32 source, void (*combine)(void*, u32), u32 need,
                 const char* file, int line) {
  Fiber* f = current;
  Simd* s = f->simd;
  arrive(f, {file, line});
  u32 area = s->parity;
  memcpy(s->slots[area][f->lane], v, n);
  s->combine = combine;
  s->need = need;
  if (s->arrived < s->live) {
    f->state = AT_SIMD;
    switch_out();
  } else {
    S->counts.simd_ops++;
    complete(f);
  }
  if (need == MH_NEED_SOURCE && !(s->used_mask[area] >> source & 1)) {
    if (S->checking() && !S->o.allow_inactive_lanes)
      report("inactive-lanes", u32(line), 1,
             who(f) + words(" reads from lane %u, which is inactive, at ", source) +
                 place(Site{file, line}));
    return;
  }
  memcpy(v, s->slots[area][source], n);
}

void* mh_threadgroup(const void* key, size_t bytes, size_t align, const char* name,
                     const char* file, int line) {
  Group* g = current->group;
  for (Variable& x : g->variables)
    if (x.key == key) return g->memory + x.offset;
  align = std::max<size_t>(align, 16);
  size_t gap = S->checking() ? 64 : 0;  // between variables nothing is valid
  size_t offset = (g->used + align - 1) & ~(align - 1);
  size_t total = bytes;
  for (Variable& x : g->variables) total += (x.bytes + 15) & ~size_t(15);
  if (total > S->o.threadgroup_limit || offset + bytes + gap > g->capacity) {
    fail("threadgroup-memory", words("`%s` at ", name) + place(Site{file, line}) +
                                   words(" brings the threadgroup to %zu bytes; the limit is %u",
                                         total, S->o.threadgroup_limit));
    leave();
  }
  g->used = offset + bytes + gap;
  g->variables.push_back({key, name, offset, bytes});
  S->counts.threadgroup_bytes = std::max<u64>(S->counts.threadgroup_bytes, total);
  if (S->checking()) mark_unwritten(g->shadow, offset, bytes + gap);
  return g->memory + offset;
}
}
