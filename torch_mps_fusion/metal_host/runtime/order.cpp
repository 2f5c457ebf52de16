#include "order.h"

namespace mh {
namespace {
constexpr u32 FLAG[2] = {2, 1};  // mem_flags of each Space

u64 domain(const Fiber* f, int scope) {
  switch (scope) {
    case SIMDGROUP_SCOPE:
      return u64(f->group->number) << 32 | (f->index / 32 + 1);
    case THREADGROUP_SCOPE:
      return f->group->number;
    default:
      return 0;
  }
}
void join(Clocks& into, const Clocks& other) {
  for (int space = 0; space < 2; ++space) mh::join(into.of[space], other.of[space]);
}
ClockPtr own_view(const Fiber* f, int space) {
  return advanced(f->order.known[space], f->group->number, S->threads, {{f->index, f->order.time}});
}
}  // namespace

void meet(Fiber** fibers, u32 count, u32 flags) {
  std::vector<std::pair<u32, u32>> times;
  for (u32 i = 0; i < count; ++i) times.push_back({fibers[i]->index, fibers[i]->order.time});
  for (int space = 0; space < 2; ++space) {
    if (!(flags & FLAG[space])) continue;
    ClockPtr all;
    const Clock* last = nullptr;
    for (u32 i = 0; i < count; ++i) {
      const ClockPtr& known = fibers[i]->order.known[space];
      if (known.get() != last) mh::join(all, known);
      last = known.get();
    }
    all = advanced(all, fibers[0]->group->number, S->threads, times);
    for (u32 i = 0; i < count; ++i) fibers[i]->order.known[space] = all;
  }
  for (u32 i = 0; i < count; ++i) fibers[i]->order.time++;
}

void fence(Fiber* f, u32 flags, u32 scope) {
  if (scope == 0) return;  // thread_scope_thread
  int widest = scope >= 3 ? DEVICE_SCOPE : int(scope) - 1;
  for (int space = 0; space < 2; ++space) {
    if (!(flags & FLAG[space])) continue;
    for (int s = 0; s <= widest; ++s) {
      mh::join(f->order.known[space], f->order.pending[s].of[space]);
      f->order.pending[s].of[space].reset();
    }
    ClockPtr view = own_view(f, space);
    for (int s = 0; s <= widest; ++s) f->order.released[s].of[space] = view;
  }
  f->order.time++;
}

void atomic_read(Fiber* f, const void* place) {
  auto found = S->releases.find(place);
  if (found != S->releases.end()) take_releases(f, found->second);
}

void take_releases(Fiber* f, const std::vector<Release>& releases) {
  for (const Release& r : releases)
    if (r.domain == domain(f, r.scope)) join(f->order.pending[r.scope], r.clocks);
}

void atomic_written(Fiber* f, const void* place, bool read_too) {
  auto& list = S->releases[place];
  if (!read_too) list.clear();
  for (int scope = 0; scope < SCOPES; ++scope) {
    if (!f->order.released[scope]) continue;
    u64 mine = domain(f, scope);
    Release* into = nullptr;
    for (Release& r : list)
      if (r.scope == scope && r.domain == mine) into = &r;
    if (!into) into = &list.emplace_back(Release{u8(scope), mine, {}});
    join(into->clocks, f->order.released[scope]);
  }
}
}  // namespace mh
