#include "group.h"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>

#include "report.h"
#include "schedule.h"
#include "shadow.h"
#include "wait.h"

namespace mh {
namespace {
// Threadgroups outlive a launch: their stacks are expensive to touch for the first time.
std::mutex pool_lock;
std::vector<std::unique_ptr<Group>> pool;
constexpr size_t POOLED = 8192;  // threads in all

std::unique_ptr<Group> take_group(u32 threads, size_t stack, size_t capacity) {
  {
    std::lock_guard lock(pool_lock);
    for (auto& g : pool)
      if (g->fibers.size() == threads && g->stack_bytes == stack && g->capacity == capacity) {
        std::unique_ptr<Group> found = std::move(g);
        g = std::move(pool.back());
        pool.pop_back();
        return found;
      }
  }
  return std::make_unique<Group>(threads, stack, capacity);
}
MhPos position(u32 index, MhPos size) {
  return {index % size.x, index / size.x % size.y, index / size.x / size.y};
}

void fiber_main() {
  Fiber* f = current;
  S->launch->entry(&f->thread);
  Group* g = f->group;
  went_on(f);
  f->state = DONE;
  g->live--;
  note_progress();
  if (g->arrived) {
    fail("barrier-divergence",
         who(f) + words(" returned while %u threads wait at ", g->arrived) + place(g->site));
    leave();
  }
  lane_returned(f);
  if (!g->live) {
    finished(g);
    leave();
  }
  f->spun = false;
  switch_out();
  __builtin_unreachable();
}

void start_fiber(Group* g, Fiber& f, u32 index) {
  f.group = g;
  f.simd = &g->simds[index / 32];
  f.index = index;
  f.lane = index & 31;
  f.id = g->number * S->threads + index;
  f.state = READY;
  f.spun = false;
  f.seen_count = 0;
  f.versions.clear();
  f.poll = {};
  f.entered = nullptr;
  f.read_place = f.read_pc = f.last_place = f.last_pc = nullptr;
  f.read_count = 0;
  f.wait = {};
  f.thread = {&g->shared, position(index, g->shared.size), index};
  if (S->checking()) {
    f.order = {};
    f.order.time = 1;
  }
  f.stack = g->stacks + PAGE + size_t(index) * g->stack_bytes;
  // Staggered, else the hot frames of all threads share the same cache sets.
  f.sp = prepare_stack(f.stack + g->stack_bytes - index * 448 % 16384, fiber_main);
  make_ready(&f);
}

void start_simds(Group* g) {
  for (u32 i = 0; i * 32 < g->threads; ++i) {
    Simd& s = g->simds[i];
    s.live = std::min(32u, g->threads - 32 * i);
    s.arrived = s.parity = s.waits = 0;
    s.full_mask = s.live_mask = s.live == 32 ? ~0u : (1u << s.live) - 1;
    s.quiet = 1000;
    s.combine = nullptr;
  }
}

void start_memory(Group* g) {
  g->used = 0;
  g->variables.clear();
  memset(g->memory, 0xff, S->checking() ? g->capacity : S->o.threadgroup_limit);
  g->shared.threadgroups = g->locals;
  if (S->checking() && !g->shadow.cells.size())
    start_shadow(g->shadow, g->memory, g->memory + g->capacity);
  for (u32 i = 0; i < S->launch->local_count; ++i) {
    static const char* const NAMES[] = {"[[threadgroup(0)]]", "[[threadgroup(1)]]",
                                        "[[threadgroup(2)]]", "[[threadgroup(3)]]",
                                        "[[threadgroup(n)]]"};
    size_t bytes = S->launch->local_bytes[i];
    g->locals[i] = g->memory + g->used;
    g->variables.push_back({nullptr, NAMES[std::min(i, 4u)], g->used, bytes});
    size_t taken = ((bytes + 15) & ~size_t(15)) + (S->checking() ? 64 : 0);
    if (S->checking()) mark_unwritten(g->shadow, g->used, taken);
    g->used += taken;
  }
  u64 bytes = 0;
  for (Variable& v : g->variables) bytes += v.bytes;
  S->counts.threadgroup_bytes = std::max(S->counts.threadgroup_bytes, bytes);
}

void start(Group* g, u32 number) {
  g->number = number;
  g->rank = S->counts.started++;
  g->events = 0;
  g->quiet = 1000;
  g->lost = false;
  g->position = NOWHERE;
  g->ready.count = 0;
  MhPos at = position(number, S->grid), cut = S->size;
  cut.x = std::min(cut.x, S->extent.x - at.x * S->size.x);
  cut.y = std::min(cut.y, S->extent.y - at.y * S->size.y);
  cut.z = std::min(cut.z, S->extent.z - at.z * S->size.z);
  g->shared = {at, cut, S->size, S->grid, S->extent, S->buffers.data(), g->locals};
  g->threads = g->live = cut.x * cut.y * cut.z;
  g->arrived = 0;
  bool loses = std::find(S->lost.begin(), S->lost.end(), number) != S->lost.end();
  g->lost_after = loses ? S->random() % std::max(1u, S->o.lost_within) : ~0u;
  g->budget = S->o.policy == MH_UNFAIR && S->o.seed ? 2 + S->random() % (2u << S->random() % 5) : 2;
  start_simds(g);
  start_memory(g);
  for (u32 i = 0; i < g->threads; ++i) start_fiber(g, g->fibers[i], i);
}
}  // namespace

char* map_memory(size_t bytes) {
  void* p =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : static_cast<char*>(p);
}

void keep_groups(std::vector<std::unique_ptr<Group>>& groups) {
  std::lock_guard lock(pool_lock);
  size_t threads = 0;
  for (auto& g : groups) {
    threads += g->fibers.size();
    if (threads > POOLED) break;
    pool.push_back(std::move(g));
  }
  groups.clear();
  // The oldest go first.
  size_t kept = 0, first = pool.size();
  while (first && kept + pool[first - 1]->fibers.size() <= POOLED)
    kept += pool[--first]->fibers.size();
  pool.erase(pool.begin(), pool.begin() + long(first));
}

Group::Group(u32 n, size_t stack, size_t memory_bytes)
    : fibers(n), simds((n + 31) / 32), capacity(memory_bytes), stack_bytes(stack) {
  stacks_bytes = PAGE + size_t(n) * stack;
  stacks = map_memory(stacks_bytes);
  if (stacks) mprotect(stacks, PAGE, PROT_NONE);
  memory = static_cast<char*>(aligned_alloc(PAGE, (capacity + PAGE - 1) & ~(PAGE - 1)));
}
Group::~Group() {
  munmap(stacks, stacks_bytes);
  free(memory);
}

bool start_next() {
  if (S->aborted || S->resident >= S->o.residency) return false;
  u32 turn = S->shared_next ? S->shared_next->fetch_add(1) : S->next;
  if (turn >= S->groups) return false;
  if (!S->shared_next) S->next++;
  if (S->idle.empty()) {
    size_t capacity = size_t(S->o.threadgroup_limit) + (S->checking() ? 8192 : 0);
    S->all.push_back(take_group(S->threads, size_t(S->o.stack_kb) * 1024, capacity));
    if (!S->all.back()->stacks) {
      S->all.pop_back();
      fail("crash", words("no memory for the stacks of %u threadgroups", S->resident + 1));
      return false;
    }
    S->idle.push_back(S->all.back().get());
  }
  Group* g = S->idle.back();
  S->idle.pop_back();
  S->resident++;
  start(g, S->order.empty() ? turn : S->order[turn]);
  return true;
}

void finished(Group* g) {
  S->counts.finished++;
  S->resident--;
  S->idle.push_back(g);
}
}  // namespace mh
