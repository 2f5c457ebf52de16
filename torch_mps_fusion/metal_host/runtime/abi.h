// The C interface of the fiber runtime: what a host calls, and what a compiled kernel sees.
#pragma once
#include <cstdint>
using u8 = uint8_t;
using u32 = uint32_t;
using u64 = uint64_t;

struct MhPos {
  u32 x, y, z;
};
// What a kernel's entry gets; the same layout is in shim/msl/launch_cpu.h.
struct MhShared {
  MhPos group, size, full_size, groups, threads;
  void** buffers;
  void** threadgroups;
};
struct MhThread {
  const MhShared* shared;
  MhPos position;
  u32 index;
};
using MhEntry = void (*)(const MhThread*);

enum MhPolicy : u32 { MH_FIFO, MH_RANDOM, MH_PRIORITY, MH_REVERSE, MH_UNFAIR };
enum MhOrder : u32 { MH_IN_ORDER, MH_REVERSED, MH_SHUFFLED };
// What a simdgroup operation asks of the other lanes: nothing, that the lane it reads is active,
// that all 32 are.
enum MhNeed : u32 { MH_NEED_LIVE, MH_NEED_SOURCE, MH_NEED_ALL };
enum MhAtomic : u32 {
  MH_LOAD,
  MH_STORE,
  MH_EXCHANGE,
  MH_ADD,
  MH_SUB,
  MH_AND,
  MH_OR,
  MH_XOR,
  MH_MIN,
  MH_MAX,
  MH_COMPARE_EXCHANGE
};
enum MhType : u32 { MH_U32, MH_I32, MH_F32, MH_U64, MH_U8 };

struct MhOptions {
  u64 seed;
  u32 policy;             // MhPolicy
  u32 order;              // MhOrder: in which order threadgroups start
  u32 residency;          // threadgroups in flight at once; 0: 65,536 threads
  u32 preempt;            // checked: also switch at one in so many plain accesses; 0: never
  u32 stale;              // checked: one in so many atomic loads may see an older value; 0: none
  u32 lost;               // so many threadgroups, picked by the seed, stop running for good
  u32 lost_within;        // before so many of their atomics, barriers and pre-emptions
  u32 threads;            // OS threads; above 1: no exploration, no checks
  u32 check;              // 0 nothing, 1 counters of the instrumented build, 2 all checks
  u32 spin_limit;         // unchanged polls for each thread that may run before a livelock
  u32 time_limit_ms;      // 0: none
  u32 threadgroup_limit;  // bytes of threadgroup memory
  u32 stack_kb;           // of a thread
  u32 allow_simdgroup_spin;
  u32 allow_inactive_lanes;
};
struct MhBuffer {
  void* data;
  u64 bytes;
  const char* name;
  u32 poison;  // checked: the contents count as never written
};
struct MhLaunch {
  MhEntry entry;
  const void* code;  // any address inside the kernel's library
  u32 grid[3];       // threadgroups
  u32 group[3];      // threads in each
  u32 threads[3];    // extent in threads where edge threadgroups are cut; 0: whole threadgroups
  u32 buffer_count;
  const MhBuffer* buffers;  // by index
  u32 local_count;
  const u32* local_bytes;  // of each [[threadgroup(i)]] argument
  MhOptions options;
};
struct MhBufferCounts {
  u64 read, written, read_distinct, written_distinct, atomics;
};
struct MhCounts {
  u64 trace;  // hash of the schedule
  u64 switches, barriers, simd_barriers, simd_ops, atomics, fences, spins, accesses;
  u64 threadgroup_bytes, threadgroup_read, threadgroup_written;
  u64 started, finished, lost;
};

// Runs a launch. Returns the number of faults; `text` gets one line each, `kind<TAB>message`, in
// which @[+hex] stands for an address in the kernel's library and @[file:line] for a place.
extern "C" u32 mh_launch(const MhLaunch* launch, MhCounts* counts, MhBufferCounts* per_buffer,
                         char* text, u32 capacity);
extern "C" u32 mh_abi_version();
