// How tasks of one persistent dispatch hand data on: Metal 3.2.
// A producer writes through coherent pointers, its threadgroup meets at a barrier, and one thread
// fences and adds to a counter. A consumer's SIMD group polls the counter, fences, and goes on. All
// waits are bounded; who gives up writes why into the control block, and the grid drains.
#pragma once
#include "times.h"

// The pointer policy of data that crosses threadgroups inside a dispatch.
struct Across {
  template <typename E>
  using in = coherent(device) device const E*;
  template <typename E>
  using out = coherent(device) device E*;
};

inline void device_fence() {
  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
}
inline uint peek(device atomic_uint* word) {
  return atomic_load_explicit(word, memory_order_relaxed);
}

constant constexpr uint WORKER = 256;  // threads of a worker

// What a worker goes by.
struct Launch {
  device atomic_uint* counters;
  device atomic_uint* control;
  device const TaskEdge* edges;
  threadgroup uint* left;  // by SIMD group; not 0: it gave a wait up
  Times times;
  uint epoch, spin_limit, sg, lane;
};

// The first to give up writes the record; the status comes last. The counters are marked behind the
// claim: who enters and finds them marked must not claim that an earlier launch did it.
inline void give_up(thread const Launch& l, uint status, uint task, TaskEdge wanted, uint seen) {
  device atomic_uint* c = l.control;
  if (atomic_exchange_explicit(c + kControlClaimed, 1u, memory_order_relaxed) != 0) return;
  atomic_store_explicit(l.counters + kCounterBroken, 1u, memory_order_relaxed);
  atomic_store_explicit(c + kControlTask, task, memory_order_relaxed);
  atomic_store_explicit(c + kControlCounter, wanted.counter, memory_order_relaxed);
  atomic_store_explicit(c + kControlExpected, wanted.count, memory_order_relaxed);
  atomic_store_explicit(c + kControlSeen, seen, memory_order_relaxed);
  atomic_store_explicit(c + kControlStatus, status, memory_order_relaxed);
}

// Whether the launch is to end early; asks for it if the host cancels.
inline bool ending(thread const Launch& l, uint task) {
  if (peek(l.control + kControlStatus) != kStatusWell) return true;
  if (peek(l.control + kControlCancel) == 0) return false;
  TaskEdge none;
  none.counter = none.count = 0;
  give_up(l, kStatusCancelled, task, none, 0);
  return true;
}

// One thread waits for one counter; false: the launch is to end early. Counters wrap; their
// differences do not care. polls: how often it looked.
inline bool hold(thread const Launch& l, uint task, device const TaskEdge* wait,
                 thread uint& polls) {
  TaskEdge wanted;
  wanted.counter = wait->counter;
  wanted.count = (l.epoch + 1) * wait->count;
  device atomic_uint* counter = l.counters + kCounterFirst + kCounterStride * wanted.counter;
  for (uint n = 0;; ++n) {
    const uint seen = peek(counter);
    polls = n + 1;
    if (int(seen - wanted.count) >= 0) return true;
    if (n % 64 == 63 && ending(l, task)) return false;
    if (n >= l.spin_limit) {
      give_up(l, kStatusExpired, task, wanted, seen);
      return false;
    }
  }
}
// The SIMD group waits for `count` edges, a lane for every 32nd; what their signals publish is then
// seen by all its lanes. False, and marked in `left`: one of them was given up.
inline bool hold_all(thread const Launch& l, uint task, uint first, uint count) {
  const uint begin = kTimes ? ticks(l.times) : 0;
  uint counter = 0, most = 0;
  bool there = true;
  for (uint i = l.lane; i < count && there; i += 32) {
    uint polls = 0;
    there = hold(l, task, l.edges + first + i, polls);
    if (kTimes && polls > most) most = polls, counter = l.edges[first + i].counter;
  }
  device_fence();
  simdgroup_barrier(mem_flags::mem_device);
  if (kTimes) note_wait(l.times, task * (WORKER / 32) + l.sg, begin, counter, most, l.lane);
  there = simd_all(there);
  if (!there && l.lane == 0) l.left[l.sg] = 1;
  return there;
}

// Whether a wait of this worker was given up: it does no more then. All its threads get one answer,
// because a barrier is behind the waits of a task, and another one before those of the next task.
inline bool has_left(thread const Launch& l) {
  uint left = 0;
#pragma unroll
  for (uint s = 0; s < WORKER / 32; ++s) left |= l.left[s];
  return left != 0;
}

// Waiting hooks of the task bodies: for all edges of a record, where the threadgroup meets, or for
// the one of a segment of K, behind which the body has its own barrier.
struct WholeRecord {
  Launch launch;
  uint task, first, count;
};
inline bool wait_for(thread const WholeRecord& w, uint) {
  if (w.count == 0) return true;
  hold_all(w.launch, w.task, w.first, w.count);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return !has_left(w.launch);
}
struct BySegment {
  Launch launch;
  uint task, first;
};
inline bool wait_for(thread const BySegment& w, uint segment) {
  return hold_all(w.launch, w.task, w.first + segment, 1);
}
inline bool has_left(thread const Nothing&) { return false; }
inline bool has_left(thread const BySegment& w) { return has_left(w.launch); }

// The next ticket of this launch; `before`: those of earlier ones.
inline uint draw(device atomic_uint* counters, uint before) {
  return atomic_fetch_add_explicit(counters + kCounterTicket, 1u, memory_order_relaxed) - before;
}

// After the barrier that ends a task: this thread's signal.
inline void publish(thread const Launch& l, uint edge) {
  device_fence();
  device atomic_uint* counter = l.counters + kCounterFirst + kCounterStride * l.edges[edge].counter;
  atomic_fetch_add_explicit(counter, l.edges[edge].count, memory_order_relaxed);
}

// A worker's first step: a launch is not done before all its workers are. False: a failed launch
// left the block behind, which counts wrong until it is cleared, and there is nothing to do.
inline bool enter(thread const Launch& l) {
  atomic_fetch_or_explicit(l.control + kControlSlot, uint(kSlotUnderWay), memory_order_relaxed);
  TaskEdge none;
  none.counter = none.count = 0;
  const uint broken = peek(l.counters + kCounterBroken);
  if (broken == 0) return true;
  give_up(l, kStatusBroken, 0, none, broken);
  return false;
}

// A worker's last step. The last of all of them commits, unless one gave up.
inline void leave(thread const Launch& l, uint workers, bool other_slot) {
  device_fence();
  const uint before =
      atomic_fetch_add_explicit(l.counters + kCounterArrived, 1u, memory_order_relaxed);
  if (before != l.epoch * workers + workers - 1) return;
  device_fence();
  if (peek(l.control + kControlStatus) != kStatusWell) return;
  atomic_store_explicit(l.counters + kCounterEpoch, l.epoch + 1, memory_order_relaxed);
  if (other_slot)
    atomic_fetch_xor_explicit(l.control + kControlSlot, uint(kSlotCommitted | kSlotUnderWay),
                              memory_order_relaxed);
  else
    atomic_store_explicit(l.control + kControlSlot, uint(kSlotReady), memory_order_relaxed);
}
