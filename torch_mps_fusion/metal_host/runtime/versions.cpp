#include "versions.h"

#include <algorithm>

#include "order.h"

namespace mh {
namespace {
constexpr size_t KEPT = 16;  // versions of a place

// Whether f must know the version: somebody did before what f does now.
bool ordered(const Version& v, const Fiber* f) {
  return std::any_of(v.known.begin(), v.known.end(),
                     [&](auto at) { return before(at.first, at.second, f, DEVICE); });
}
bool in_threadgroup(const Fiber* f, const void* place) {
  const char* p = static_cast<const char*>(place);
  return p >= f->group->memory && p < f->group->memory + f->group->capacity;
}
}  // namespace

u64 load_version(Fiber* f, const void* place, u64 newest) {
  auto found = S->versions.find(place);
  if (found == S->versions.end() || found->second.list.back().value != newest) {
    atomic_read(f, place);  // never written by an atomic, or since then by a plain write
    return newest;
  }
  Versions& v = found->second;
  const u64 last = v.base + v.list.size() - 1;
  auto [mine, unseen] = f->versions.try_emplace(place, v.base);
  u64 first = std::max(v.base, mine->second);
  for (u64 i = last; i > first; --i)
    if (ordered(v.list[i - v.base], f)) first = i;
  u64 chosen = last;
  if (first < last && S->random() % S->o.stale == 0)
    chosen = first + S->random() % (last - first + 1);
  Version& at = v.list[chosen - v.base];
  if (unseen || chosen != mine->second) at.known.push_back({f->id + 1, f->order.time});
  mine->second = chosen;
  take_releases(f, at.releases);
  return at.value;
}

void note_version(Fiber* f, const void* place, u64 old, u64 value) {
  if (in_threadgroup(f, place)) return;
  Versions& v = S->versions[place];
  if (v.list.empty()) v.list.push_back({old, {}, {}});
  v.list.push_back({value, S->releases[place], {{f->id + 1, f->order.time}}});
  if (v.list.size() > KEPT) {
    v.list.erase(v.list.begin());
    ++v.base;
  }
  saw_newest(f, place);
}

void saw_newest(Fiber* f, const void* place) {
  auto found = S->versions.find(place);
  if (found == S->versions.end()) return;
  f->versions[place] = found->second.base + found->second.list.size() - 1;
}
}  // namespace mh
