// The state of a launch: fibers, simdgroups, threadgroups, the scheduler.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "abi.h"
#include "clock.h"

namespace mh {
enum State : u8 { READY, AT_BARRIER, AT_SIMD, DONE };
enum Space : u8 { THREADGROUP, DEVICE };
enum Scope : u8 { SIMDGROUP_SCOPE, THREADGROUP_SCOPE, DEVICE_SCOPE, SCOPES };
struct Group;
struct Simd;
struct Fiber;

struct Site {
  const char* file;
  int line;
  bool operator==(const Site&) const = default;
};
// A clock of each memory space: what a fence or an atomic carries.
struct Clocks {
  ClockPtr of[2];
  explicit operator bool() const { return of[0] || of[1]; }
};
struct Release {  // what an atomic carries to those that read it, one for each scope and domain
  u8 scope;
  u64 domain;
  Clocks clocks;
};
struct Version {  // a value of an atomic, and what it carries
  u64 value;
  std::vector<Release> releases;
  std::vector<std::pair<u32, u32>> known;  // to thread + 1 from its time on: writer and readers
};
struct Versions {  // the last ones; `base`: how many are forgotten
  u64 base = 0;
  std::vector<Version> list;
};
struct Seen {  // an atomic as a thread last read it
  const void* place;
  u64 value;
};
struct Poll {  // what a thread polls: the last repeated read
  const void* place;
  u64 value;
  const void* pc;
};
struct Wait {  // this lane waits for `place`, which lane `writer` of its simdgroup wrote meanwhile
  Fiber* writer;
  const void *place, *pc;
  bool again;   // the read was seen again since
  bool passed;  // the writer went on without coming to the read itself
};
struct Ordering {  // happens-before state of a thread; see order.h
  u32 time;
  ClockPtr known[2];
  Clocks released[SCOPES], pending[SCOPES];
};
struct Fiber {
  void* sp;
  Group* group;
  Simd* simd;
  u32 index, lane, id;
  State state;
  bool spun;  // its last step was a repeated read
  Site site;
  char* stack;
  MhThread thread;
  std::unique_ptr<Seen[]> seen;
  u32 seen_count;
  std::unordered_map<const void*, u64> versions;  // the newest that it has seen
  Poll poll;
  const void* entered;  // where the kernel called the runtime, while it is in an atomic
  const void *read_place, *read_pc;  // the last plain or atomic read, for spin detection
  u32 read_count;
  const void *last_place, *last_pc;  // the last atomic read (spin on the own simdgroup)
  Wait wait;
  Ordering order;
};
struct Simd {
  u32 live, arrived, parity, waits;
  u32 live_mask, full_mask, used_mask[2];
  u32 quiet;  // operations since a poll
  Site site;
  u32 need;
  void (*combine)(void*, u32);
  // two exchange areas in turn, so that a fast lane cannot overwrite what a slow one still reads
  alignas(32) char slots[2][32][32];
};
// Shadow of one granule (4, 2 or 1 bytes): the last plain and atomic write, and two reads.
struct Access {
  u32 id, time, pc;  // id: thread + 1
};
struct Cell {
  Access write, atomic, read[2];
  u8 flags;
};
// Cells that are all zero until touched, and take memory only then.
class Cells {
 public:
  explicit Cells(size_t count = 0);
  Cells(Cells&& other) noexcept { swap(other); }
  Cells& operator=(Cells&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Cells();
  size_t size() const { return count_; }
  Cell& operator[](size_t i) { return cells_[i]; }
  const Cell& operator[](size_t i) const { return cells_[i]; }

 private:
  void swap(Cells& other) {
    std::swap(cells_, other.cells_);
    std::swap(count_, other.count_);
  }
  Cell* cells_ = nullptr;
  size_t count_ = 0;
};
struct Region {
  char *lo = nullptr, *hi = nullptr;
  const char* name = "";
  u32 shift = 2;  // log2 of the granule
  Cells cells;
  MhBufferCounts* counts = nullptr;
};
struct Variable {  // of threadgroup memory
  const void* key;
  const char* name;
  size_t offset, bytes;
};
struct Ring {  // FIFO of fibers
  std::vector<Fiber*> items = std::vector<Fiber*>(64);
  size_t head = 0, count = 0;
  void push(Fiber* f);
  Fiber* pop();
  Fiber* take(size_t i);
};
struct Group {  // a threadgroup in flight; reused for later ones
  u32 number, threads, live, arrived, barrier_flags;
  u32 rank;    // how many threadgroups had started before it
  u32 events;  // its atomics, barriers and pre-emptions: the places where it may be stopped
  u32 budget, lost_after;
  u32 quiet;  // barriers since a poll
  bool lost;
  size_t position;  // in Scheduler::runnable
  Site site;
  MhShared shared;
  void* locals[32];
  Ring ready;
  std::vector<Fiber> fibers;
  std::vector<Simd> simds;
  char* memory;  // threadgroup memory
  size_t used, capacity;
  std::vector<Variable> variables;
  Region shadow;
  char* stacks;
  size_t stacks_bytes, stack_bytes;
  Group(u32 threads, size_t stack_bytes, size_t capacity);
  ~Group();
  Group(const Group&) = delete;
};
struct Fault {
  std::string kind, message;
};
constexpr size_t NOWHERE = ~size_t(0);

struct Scheduler {
  const MhLaunch* launch;
  MhOptions o;
  MhPos grid, size, extent;
  u32 threads, groups;
  std::vector<void*> buffers;
  void* main_sp = nullptr;
  bool aborted = false;
  volatile bool late = false;  // past the time limit; set by the watchdog's signal
  std::vector<Fault> faults;
  MhCounts counts{};

  std::vector<u32> order, priority, lost;
  u32 lowest = 0;
  u32 next = 0, resident = 0, lost_resident = 0;
  std::atomic<u32>* shared_next = nullptr;  // several OS threads: the next threadgroup
  std::atomic<u64>* shared_progress = nullptr;
  std::vector<std::unique_ptr<Group>> all;
  std::vector<Group*> idle, runnable;
  size_t at = 0;  // FIFO: the threadgroup whose turn it is
  size_t ready = 0, spin_streak = 0;
  Ring low;  // priorities: fibers that poll
  u64 stale = 0, progress_seen = 0, stale_since = 0;
  u64 random_state = 1;

  std::vector<Region> regions;
  Region* last_region = nullptr;
  std::unordered_map<const void*, std::vector<Release>> releases;
  std::unordered_map<const void*, Versions> versions;
  std::unordered_map<u64, u32> reported;
  char *code_lo = nullptr, *code_hi = nullptr;

  u32 random() {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return u32(random_state >> 16);
  }
  bool exploring() const { return o.policy != MH_FIFO; }
  bool checking() const { return o.check == 2; }
  u32 pc(const void* address) const { return u32(static_cast<const char*>(address) - code_lo); }
};

inline thread_local Scheduler* S __attribute__((tls_model("initial-exec"))) = nullptr;
inline thread_local Fiber* current __attribute__((tls_model("initial-exec"))) = nullptr;
}  // namespace mh
