// A launch from its beginning to its end.
#include <thread>

#include "group.h"
#include "isolate.h"
#include "report.h"
#include "schedule.h"
#include "shadow.h"
#include "signals.h"

namespace mh {
void locate_code(Scheduler& s);

namespace {
constexpr u32 IN_FLIGHT = 65536;  // threads, unless a residency is asked for
}

namespace {
void explain_deadlock() {
  // Lanes of one simdgroup that wait at different places are divergence, whatever else waits.
  for (auto& g : S->all)
    for (u32 i = 0; g->live && i < g->threads; ++i) {
      Fiber& f = g->fibers[i];
      if (f.state == AT_BARRIER && f.simd->arrived) {
        fail("simdgroup-divergence", who(&f) + " waits at the barrier at " + place(f.site) +
                                         ", other lanes of its simdgroup at " +
                                         place(f.simd->site));
        return;
      }
    }
  fail("deadlock", "no thread can run; " + waiting());
}

void run(Scheduler& s, Watchdog& dog) {
  S = &s;
  current = nullptr;
  HandlerStack handler_stack;
  dog.watch(pthread_self());
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
  dog.unwatch(pthread_self());
  S = nullptr;
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
  if (!s.o.residency) s.o.residency = std::max(1u, IN_FLIGHT / s.threads);
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
  for (u32 i = 0; i < s.launch->buffer_count; ++i)
    for (size_t k = 0; k < copies.size(); ++k) {
      auto* p = static_cast<char*>(s.buffers[i]);
      if (p && p >= s.regions[k].lo && p < s.regions[k].hi) per_buffer[i] = counts[k];
    }
  copy_back(copies);
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
extern "C" u32 mh_abi_version() { return 2; }

extern "C" u32 mh_launch(const MhLaunch* launch, MhCounts* counts, MhBufferCounts* per_buffer,
                         char* text, u32 capacity) {
  Scheduler s;
  prepare(s, launch);
  prepare_schedule(s);
  s.counts.trace = 0xcbf29ce484222325ull;
  install_handlers();
  try {
    Watchdog dog(s.o.time_limit_ms);
    if (s.o.threads > 1)
      run_threads(s, dog);
    else if (s.o.check)
      run_checked(s, dog, per_buffer);
    else
      run(s, dog);
  } catch (const std::exception& error) {
    s.faults.push_back({"crash", words("the runtime itself failed: %s", error.what())});
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
