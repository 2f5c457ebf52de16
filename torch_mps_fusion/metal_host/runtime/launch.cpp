// A launch from its beginning to its end.
#include <dlfcn.h>
#include <sys/mman.h>

#include <mutex>
#include <thread>

#include "order.h"
#include "report.h"
#include "schedule.h"
#include "shadow.h"
#include "signals.h"
#include "wait.h"
#ifdef __linux__
#include <link.h>
#endif

namespace mh {
namespace {
constexpr size_t PAGE = 4096, GUARD = 1 << 20;

char* map(size_t bytes, int protection) {
  void* p = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : static_cast<char*>(p);
}

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
  while (first && kept + pool[first - 1]->fibers.size() <= POOLED) kept += pool[--first]->fibers.size();
  pool.erase(pool.begin(), pool.begin() + long(first));
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
    fail("barrier-divergence", who(f) + words(" returned while %u threads wait at ", g->arrived) +
                                   place(g->site));
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
  f.spun = f.seen_used = false;
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
    static const char* const NAMES[] = {"[[threadgroup(0)]]", "[[threadgroup(1)]]", "[[threadgroup(2)]]",
                                        "[[threadgroup(3)]]", "[[threadgroup(n)]]"};
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
  g->lost_after = loses ? S->random() % 32 : ~0u;
  g->budget = S->o.policy == MH_UNFAIR && S->o.seed ? 2 + S->random() % (2u << S->random() % 5) : 2;
  start_simds(g);
  start_memory(g);
  for (u32 i = 0; i < g->threads; ++i) start_fiber(g, g->fibers[i], i);
}
}  // namespace

Group::Group(u32 n, size_t stack, size_t memory_bytes)
    : fibers(n), simds((n + 31) / 32), capacity(memory_bytes), stack_bytes(stack) {
  stacks_bytes = PAGE + size_t(n) * stack;
  stacks = map(stacks_bytes, PROT_READ | PROT_WRITE);
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

namespace {
void explain_deadlock() {
  // Lanes of one simdgroup that wait at different places are divergence, whatever else waits.
  for (auto& g : S->all)
    for (u32 i = 0; g->live && i < g->threads; ++i) {
      Fiber& f = g->fibers[i];
      if (f.state == AT_BARRIER && f.simd->arrived) {
        fail("simdgroup-divergence", who(&f) + " waits at the barrier at " + place(f.site) +
                                         ", other lanes of its simdgroup at " + place(f.simd->site));
        return;
      }
    }
  fail("deadlock", "no thread can run; " + waiting());
}

void run(Scheduler& s, Watchdog& dog) {
  S = &s;
  current = nullptr;
  HandlerStack handler_stack;
  dog.watch_this_thread();
  for (;;) {
    Fiber* f = s.aborted ? nullptr : pick();
    if (!f && !s.aborted && !s.shared_next && s.next < s.groups && start_next()) continue;
    if (!f) {
      bool stuck = s.resident > s.lost_resident || (!s.shared_next && s.next < s.groups);
      if (!s.aborted && stuck) explain_deadlock();
      break;
    }
    current = f;
    mh_swap(&s.main_sp, f->sp);
    current = nullptr;
  }
  S = nullptr;
}

#ifdef __linux__
int find_code(dl_phdr_info* info, size_t, void* out) {
  auto* s = static_cast<Scheduler*>(out);
  auto address = reinterpret_cast<uintptr_t>(s->launch->code);
  bool inside = false;
  uintptr_t hi = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    auto& p = info->dlpi_phdr[i];
    if (p.p_type != PT_LOAD) continue;
    uintptr_t lo = info->dlpi_addr + p.p_vaddr;
    inside = inside || (address >= lo && address < lo + p.p_memsz);
    hi = std::max(hi, lo + p.p_memsz);
  }
  if (!inside) return 0;
  s->code_lo = reinterpret_cast<char*>(info->dlpi_addr);
  s->code_hi = reinterpret_cast<char*>(hi);
  return 1;
}
#endif
void locate_code(Scheduler& s) {
#ifdef __linux__
  dl_iterate_phdr(find_code, &s);
#else
  Dl_info info;
  if (dladdr(s.launch->code, &info)) {
    s.code_lo = static_cast<char*>(info.dli_fbase);
    s.code_hi = s.code_lo + (16 << 20);
  }
#endif
}

void prepare(Scheduler& s, const MhLaunch* launch) {
  s.launch = launch;
  s.o = launch->options;
  s.grid = {launch->grid[0], launch->grid[1], launch->grid[2]};
  s.size = {launch->group[0], launch->group[1], launch->group[2]};
  s.extent = launch->threads[0]
                 ? MhPos{launch->threads[0], launch->threads[1], launch->threads[2]}
                 : MhPos{s.grid.x * s.size.x, s.grid.y * s.size.y, s.grid.z * s.size.z};
  s.threads = s.size.x * s.size.y * s.size.z;
  s.groups = s.grid.x * s.grid.y * s.grid.z;
  if (!s.o.residency) s.o.residency = s.groups;
  for (u32 i = 0; i < launch->buffer_count; ++i) s.buffers.push_back(launch->buffers[i].data);
  locate_code(s);
  s.random_state = (0x9E3779B97F4A7C15ull * (s.o.seed + 1)) | 1;
  for (int i = 0; i < 8; ++i) s.random();
}

std::vector<u32> shuffled(Scheduler& s, bool shuffle) {
  std::vector<u32> order(s.groups);
  for (u32 i = 0; i < s.groups; ++i) order[i] = i;
  for (u32 i = s.groups; shuffle && i-- > 1;) std::swap(order[i], order[s.random() % (i + 1)]);
  return order;
}

void prepare_schedule(Scheduler& s) {
  if (s.o.order == MH_SHUFFLED) s.order = shuffled(s, true);
  if (s.o.order == MH_REVERSED)
    for (u32 i = s.groups; i--;) s.order.push_back(i);
  // Priorities start high, so that a fallen threadgroup is below all others.
  s.priority = shuffled(s, s.o.policy == MH_PRIORITY);
  s.lowest = 1u << 30;
  for (u32& p : s.priority) p += (1u << 30) + 1;
  if (s.o.lost) {
    s.lost = shuffled(s, true);
    s.lost.resize(std::min(s.o.lost, s.groups));
  }
}

// Bound memory in a place of its own, with nothing valid around it. Bindings that overlap (views
// of one storage) share a copy.
struct Copy {
  char *lo, *hi;
  std::string name;
  bool poison;
  char *block, *data;
  size_t block_bytes;
};
std::vector<Copy> isolate(Scheduler& s) {
  std::vector<u32> by_address;
  const MhBuffer* b = s.launch->buffers;
  for (u32 i = 0; i < s.launch->buffer_count; ++i)
    if (b[i].data) by_address.push_back(i);
  std::sort(by_address.begin(), by_address.end(), [&](u32 x, u32 y) { return b[x].data < b[y].data; });
  std::vector<Copy> copies;
  std::vector<size_t> home(s.launch->buffer_count);
  for (u32 i : by_address) {
    char *lo = static_cast<char*>(b[i].data), *hi = lo + b[i].bytes;
    if (copies.empty() || lo >= copies.back().hi) {
      copies.push_back({lo, hi, b[i].name, b[i].poison != 0, nullptr, nullptr, 0});
    } else {
      copies.back().hi = std::max(copies.back().hi, hi);
      copies.back().name += std::string("/") + b[i].name;
      copies.back().poison = copies.back().poison && b[i].poison;
    }
    home[i] = copies.size() - 1;
  }
  for (Copy& c : copies) {
    size_t bytes = size_t(c.hi - c.lo), shift = uintptr_t(c.lo) & (PAGE - 1);
    c.block_bytes = 2 * GUARD + ((bytes + shift + PAGE - 1) & ~(PAGE - 1));
    c.block = map(c.block_bytes, PROT_READ | PROT_WRITE);
    if (!c.block) {
      fail("crash", "no memory for the checked copy of `" + c.name + "`");
      return copies;
    }
    c.data = c.block + GUARD + shift;
    if (c.poison)
      memset(c.data, 0xff, bytes);
    else
      memcpy(c.data, c.lo, bytes);
  }
  for (u32 i : by_address)
    s.buffers[i] = copies[home[i]].data + (static_cast<char*>(b[i].data) - copies[home[i]].lo);
  return copies;
}

void run_checked(Scheduler& s, Watchdog& dog, MhBufferCounts* per_buffer) {
  S = &s;
  std::vector<Copy> copies = isolate(s);
  S = nullptr;
  if (s.aborted) return;
  s.regions.resize(copies.size());
  std::vector<MhBufferCounts> counts(copies.size());
  for (size_t i = 0; i < copies.size(); ++i) {
    size_t bytes = size_t(copies[i].hi - copies[i].lo);
    start_shadow(s.regions[i], copies[i].data, copies[i].data + bytes);
    if (copies[i].poison) mark_unwritten(s.regions[i], 0, bytes);
    s.regions[i].name = copies[i].name.c_str();
    s.regions[i].counts = &counts[i];
  }
  run(s, dog);
  for (Region& r : s.regions) count_distinct(r);
  for (u32 i = 0; i < s.launch->buffer_count; ++i)
    for (size_t k = 0; k < copies.size(); ++k) {
      auto* p = static_cast<char*>(s.buffers[i]);
      if (p && p >= s.regions[k].lo && p < s.regions[k].hi) per_buffer[i] = counts[k];
    }
  for (Copy& c : copies) {
    memcpy(c.lo, c.data, size_t(c.hi - c.lo));
    munmap(c.block, c.block_bytes);
  }
}

void add(MhCounts& into, const MhCounts& other) {
  into.switches += other.switches;
  into.barriers += other.barriers;
  into.simd_barriers += other.simd_barriers;
  into.simd_ops += other.simd_ops;
  into.atomics += other.atomics;
  into.fences += other.fences;
  into.spins += other.spins;
  into.started += other.started;
  into.finished += other.finished;
  into.threadgroup_bytes = std::max(into.threadgroup_bytes, other.threadgroup_bytes);
}

// Throughput: every OS thread takes the next threadgroup when its own wait or are done.
void run_threads(Scheduler& s, Watchdog& dog) {
  std::atomic<u32> next{0};
  std::atomic<u64> progress{0};
  std::vector<std::unique_ptr<Scheduler>> parts;
  std::vector<std::thread> threads;
  for (u32 i = 0; i < s.o.threads; ++i) {
    auto part = std::make_unique<Scheduler>();
    prepare(*part, s.launch);
    part->shared_next = &next;
    part->shared_progress = &progress;
    parts.push_back(std::move(part));
  }
  for (size_t i = 1; i < parts.size(); ++i)
    threads.emplace_back([&, p = parts[i].get()] { run(*p, dog); });
  run(*parts[0], dog);
  for (auto& t : threads) t.join();
  for (auto& p : parts) {
    for (Fault& f : p->faults) s.faults.push_back(f);
    add(s.counts, p->counts);
    keep_groups(p->all);
  }
}
}  // namespace
}  // namespace mh

using namespace mh;
extern "C" u32 mh_abi_version() { return 1; }

extern "C" u32 mh_launch(const MhLaunch* launch, MhCounts* counts, MhBufferCounts* per_buffer,
                         char* text, u32 capacity) {
  Scheduler s;
  prepare(s, launch);
  prepare_schedule(s);
  s.counts.trace = 0xcbf29ce484222325ull;
  install_handlers();
  {
    Watchdog dog(s.o.time_limit_ms);
    if (s.o.threads > 1)
      run_threads(s, dog);
    else if (s.o.check)
      run_checked(s, dog, per_buffer);
    else
      run(s, dog);
  }
  restore_handlers();
  keep_groups(s.all);
  std::string all;
  for (Fault& f : s.faults) {
    std::replace(f.message.begin(), f.message.end(), '\n', ' ');
    all += f.kind + "\t" + f.message + "\n";
  }
  snprintf(text, capacity, "%s", all.c_str());
  *counts = s.counts;
  return u32(s.faults.size());
}
