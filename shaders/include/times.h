// The instrumented build of a persistent kernel (kTimes): who ran a task when, and what it waited
// for. Without the constant nothing of it is compiled.
// Its clock: metal_host's; on Metal, which has none, threadgroup 0 counts in device memory.
#pragma once
#include "math.h"
#include "tasks.h"

constant bool kTimes [[function_constant(402)]];  // the instrumented build

constant constexpr uint CLOCK_TICKS = 1u << 21;  // of a launch at most, some 0.1 s
constant constexpr uint CLOCK_IDLE = 4096;       // after so many somebody must have drawn a ticket

struct Times {
  device TaskTime* tasks;  // by ticket
  device TaskWait* waits;  // by ticket and SIMD group
  device atomic_uint* counters;
};

#ifdef MSL_TICKS
inline uint ticks(thread const Times&) { return MSL_TICKS(); }
inline void count_ticks(device atomic_uint*, uint) {}
#else
inline uint ticks(thread const Times& t) {
  return atomic_load_explicit(t.counters + kCounterTicks, memory_order_relaxed);
}
// Counts on until all workers of the launch have arrived; waits for nobody.
inline void count_ticks(device atomic_uint* counters, uint workers) {
  const uint epoch = atomic_load_explicit(counters + kCounterEpoch, memory_order_relaxed);
  const uint ticket = atomic_load_explicit(counters + kCounterTicket, memory_order_relaxed);
  const uint begin = atomic_load_explicit(counters + kCounterTicks, memory_order_relaxed);
  for (uint n = 1; n <= CLOCK_TICKS; ++n) {
    atomic_store_explicit(counters + kCounterTicks, begin + n, memory_order_relaxed);
    if (n % 64 != 0) continue;
    if (atomic_load_explicit(counters + kCounterArrived, memory_order_relaxed) ==
        (epoch + 1) * workers)
      return;
    if (n == CLOCK_IDLE &&
        atomic_load_explicit(counters + kCounterTicket, memory_order_relaxed) == ticket)
      return;
  }
}
#endif

// The waits of a SIMD group, which are over: each lane's counter that took most polls.
inline void note_wait(thread const Times& t, uint at, uint begin, uint counter, uint polls,
                      uint lane) {
  const uint most = simd_max(polls);
  const uint whose = simd_min(polls == most ? lane : 31u);
  const uint of = simd_shuffle(counter, ushort(whose));
  if (lane != 0) return;
  t.waits[at].begin = begin;
  t.waits[at].end = ticks(t);
  t.waits[at].counter = of;
  t.waits[at].polls = most;
}
