// The schedules. A launch is a pure function of its seed: no decision depends on an address, on
// time or on the machine.
#include "schedule.h"

#include <algorithm>
#include <chrono>

#include "report.h"

namespace mh {
void Ring::push(Fiber* f) {
  if (count == items.size()) {
    std::vector<Fiber*> wider(2 * count);
    for (size_t i = 0; i < count; ++i) wider[i] = items[(head + i) & (count - 1)];
    items.swap(wider);
    head = 0;
  }
  items[(head + count++) & (items.size() - 1)] = f;
}
Fiber* Ring::pop() {
  Fiber* f = items[head];
  head = (head + 1) & (items.size() - 1);
  --count;
  return f;
}
Fiber* Ring::take(size_t i) {
  std::swap(items[head], items[(head + i) & (items.size() - 1)]);
  return pop();
}

namespace {
void add_runnable(Group* g) {
  if (g->position != NOWHERE || g->lost) return;
  g->position = S->runnable.size();
  S->runnable.push_back(g);
}
void remove_runnable(Group* g) {
  if (g->position == NOWHERE) return;
  S->runnable.back()->position = g->position;
  S->runnable[g->position] = S->runnable.back();
  S->runnable.pop_back();
  g->position = NOWHERE;
}
Fiber* take(Group* g, size_t i) {
  Fiber* f = g->ready.take(i);
  --S->ready;
  if (!g->ready.count) remove_runnable(g);
  return f;
}
// A lost threadgroup never runs again: it keeps its place and what it holds.
void lose(Group* g) {
  g->lost = true;
  S->ready -= g->ready.count;
  g->ready.count = 0;
  remove_runnable(g);
  for (size_t i = S->low.count; i--;) {
    Fiber* f = S->low.pop();
    if (f->group != g) S->low.push(f);
  }
  ++S->lost_resident;
  ++S->counts.lost;
}
Group* best_by_priority() {
  Group* best = S->runnable[0];
  for (Group* g : S->runnable)
    if (S->priority[g->number] > S->priority[best->number]) best = g;
  return best;
}
// In turn; a threadgroup keeps the turn until it waits or polls. When all that can run only
// poll, one more threadgroup starts.
Fiber* pick_fifo(bool spun) {
  // To be interrupted (preempt, lost) is neither a wait nor a poll.
  bool interrupted = !spun && current && current->state == READY;
  if (!spun) {
    if (!interrupted) S->spin_streak = 0;
  } else if (++S->spin_streak > S->ready) {
    S->spin_streak = 0;
    if (start_next()) S->at = S->runnable.size() - 1;
  } else {
    ++S->at;
  }
  if (S->runnable.empty() && !start_next()) return nullptr;
  return take(S->runnable[S->at % S->runnable.size()], 0);
}
Fiber* pick_random() {
  if (S->runnable.empty()) return nullptr;
  Group* g = S->runnable[S->random() % S->runnable.size()];
  return take(g, S->random() % g->ready.count);
}
// The highest priority that does not poll. Now and then the winner falls to the bottom.
Fiber* pick_priority() {
  if (S->runnable.empty()) return S->low.count ? S->low.pop() : nullptr;
  Group* g = best_by_priority();
  if (S->o.policy == MH_PRIORITY && S->random() % 64 == 0) S->priority[g->number] = S->lowest--;
  return take(g, S->random() % g->ready.count);
}
// The threadgroup that started last, polling or not. Others that have started are starved, and
// the one that runs joins them after a few events as long as there is another to start.
Fiber* pick_unfair() {
  Group* last = nullptr;
  for (Group* g : S->runnable)
    if (!last || g->rank > last->rank) last = g;
  if ((!last || last->events >= last->budget) && start_next()) return pick_unfair();
  return last ? take(last, 0) : nullptr;
}
}  // namespace

void make_ready(Fiber* f) {
  f->state = READY;
  if (f->group->lost) return;
  if (f->spun && (S->o.policy == MH_PRIORITY || S->o.policy == MH_REVERSE)) {
    S->low.push(f);
    return;
  }
  f->group->ready.push(f);
  ++S->ready;
  add_runnable(f->group);
}

Fiber* pick() {
  bool spun = current && current->spun && current->state == READY;
  if (S->exploring() && S->o.policy != MH_UNFAIR)
    while (start_next()) {
    }
  Fiber* f = nullptr;
  switch (S->o.policy) {
    case MH_FIFO:
      f = pick_fifo(spun);
      break;
    case MH_RANDOM:
      f = pick_random();
      break;
    case MH_UNFAIR:
      f = pick_unfair();
      break;
    default:
      f = pick_priority();
  }
  if (!f) return nullptr;
  Group* g = f->group;
  if (g->events >= g->lost_after && !g->lost) {
    lose(g);
    return pick();
  }
  S->counts.trace = (S->counts.trace ^ f->id) * 0x100000001b3ull;
  return f;
}

void switch_out() {
  Fiber* me = current;
  Fiber* next = S->aborted ? nullptr : pick();
  ++S->counts.switches;
  if (next == me) return;
  current = next;
  mh_swap(&me->sp, next ? next->sp : S->main_sp);
}

void yield(bool spun) {
  char here;
  if (&here < current->stack + 2048) {
    fail("crash", who(current) + " has used up its stack");
    leave();
  }
  if (S->late) {
    fail("timeout",
         words("the launch ran past its limit of %u ms; ", S->o.time_limit_ms) + waiting());
    leave();
  }
  current->spun = spun;
  make_ready(current);
  switch_out();
  if (S->aborted) leave();
}

void note_progress() {
  S->stale = 0;
  if (S->shared_progress) S->shared_progress->fetch_add(1, std::memory_order_relaxed);
}

namespace {
u64 now_ms() {
  using namespace std::chrono;
  return u64(duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count());
}
// Several OS threads: another one may be about to change what this one polls.
bool others_move() {
  u64 seen = S->shared_progress->load(std::memory_order_relaxed);
  if (seen != S->progress_seen) {
    S->progress_seen = seen;
    S->stale_since = now_ms();
  }
  S->stale = 0;
  return now_ms() - S->stale_since < 1000;
}

void check_stale(u64 polls) {
  // Under the unfair schedule nobody else gets a turn while this threadgroup can run.
  u64 running = S->o.policy == MH_UNFAIR ? current->group->ready.count : S->ready + S->low.count;
  S->stale += polls;
  if (S->stale <= u64(S->o.spin_limit) * (running + 1) || !current->poll.pc) return;
  if (S->shared_progress && others_move()) return;
  bool starved = S->o.policy == MH_UNFAIR && !S->runnable.empty();
  std::string text = starved ? "no progress while threadgroups that have started are starved"
                             : "no progress: all that can run only polls what nobody changes";
  if (S->lost_resident) text += words(" (%u lost)", S->lost_resident);
  fail("livelock", text + ": " + who(current) + " polls " + name_of(current->poll.place) + " at " +
                       place(current->poll.pc) + "; " + waiting());
  text.~basic_string();
  leave();
}
}  // namespace

void note_poll() {
  ++S->counts.spins;
  current->group->quiet = current->simd->quiet = 0;
  check_stale(1);
}

// Threads that meet between polls are no progress: they may all be waiting in one loop.
void note_meeting(u32& quiet, u32 threads) {
  if (++quiet > 16)
    note_progress();
  else
    check_stale(threads);
}
}  // namespace mh
