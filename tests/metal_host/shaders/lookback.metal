// y = inclusive prefix sums of x in one pass (decoupled look-back).  x, y: [tiles * threads] uint.
// A threadgroup takes the next tile by ticket, publishes the tile's sum, then walks back over the
// tiles before it until one has published its whole prefix, and publishes its own.
// sums, prefixes: [tiles]; stage: [tiles], zero before the launch: 1 sum published, 2 prefix too.
// ctl: [0] next ticket, [1] error: 1 + the tile that gave up.  Both zero before the launch.
// spin: polls of one tile before a threadgroup gives up; 0 waits for ever.

// metal_host: msl 3.2
#include <metal_stdlib>
#pragma METAL fp contract(off)
using namespace metal;

struct LookbackArgs {
  uint spin;
};
typedef coherent(device) device uint* SharedWords;

static void device_fence() {
  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
}

static void publish(SharedWords where, uint value, device atomic_uint* stage, uint what) {
  *where = value;
  device_fence();
  atomic_store_explicit(stage, what, memory_order_relaxed);
}

// What tile has published, or 0 when the wait is over without it.
static uint wait_for(device atomic_uint* stage, device atomic_uint* error, uint spin) {
  for (uint n = 0; spin == 0 || n < spin; ++n) {
    const uint seen = atomic_load_explicit(stage, memory_order_relaxed);
    if (seen != 0) {
      device_fence();
      return seen;
    }
    if (atomic_load_explicit(error, memory_order_relaxed) != 0) return 0;
  }
  return 0;
}

// Adds up the tiles before this one; false when it gave up.
static bool look_back(uint tile, SharedWords sums, SharedWords prefixes, device atomic_uint* stage,
                      device atomic_uint* error, uint spin, thread uint& before) {
  before = 0;
  for (uint t = tile; t > 0; --t) {
    const uint seen = wait_for(stage + t - 1, error, spin);
    if (seen == 0) return false;
    before += seen == 2 ? prefixes[t - 1] : sums[t - 1];
    if (seen == 2) break;
  }
  return true;
}

kernel void scan_lookback(
    device const uint* x [[buffer(0)]], device uint* y [[buffer(1)]],
    SharedWords sums [[buffer(2)]], SharedWords prefixes [[buffer(3)]],
    device atomic_uint* stage [[buffer(4)]], device atomic_uint* ctl [[buffer(5)]],
    constant LookbackArgs& a [[buffer(6)]], uint tid [[thread_position_in_threadgroup]],
    uint threads [[threads_per_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint part[32], my_tile, base, ok;
  if (tid == 0) my_tile = atomic_fetch_add_explicit(&ctl[0], 1u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint tile = my_tile, i = tile * threads + tid;
  uint v = simd_prefix_inclusive_sum(x[i]);
  if (lane == 31) part[simdgroup] = v;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint sum = 0;
  for (uint s = 0; s < simdgroups; ++s) {
    if (s == simdgroup) v += sum;
    sum += part[s];
  }
  if (tid == 0) {
    uint before = 0;
    if (tile > 0) publish(sums + tile, sum, stage + tile, 1);
    ok = look_back(tile, sums, prefixes, stage, &ctl[1], a.spin, before);
    if (ok)
      publish(prefixes + tile, before + sum, stage + tile, 2);
    else
      atomic_store_explicit(&ctl[1], tile + 1, memory_order_relaxed);
    base = before;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (ok) y[i] = base + v;
}
