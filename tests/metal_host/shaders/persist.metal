// Two stages in one dispatch: squares of x into tmp, then out[t] = t + sum of all of tmp.
// x, tmp: [tiles][tile]; out: [tiles].  ctl: [0] first-stage tiles done, [1] next ticket, [2]
// error. spin: polls before a waiting threadgroup gives up and sets the error word; 0 waits for
// ever.

// metal_host: msl 3.2
#include <metal_stdlib>
#pragma METAL fp contract(off)
using namespace metal;

struct PersistArgs {
  uint tiles, tile, spin;
};
typedef coherent(device) device float* SharedFloats;

static void device_fence() {
  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
}

static void square(uint t, device const float* x, SharedFloats tmp, device atomic_uint* ctl,
                   constant PersistArgs& a, uint tid, uint threads) {
  for (uint i = tid; i < a.tile; i += threads) {
    const float v = x[t * a.tile + i];
    tmp[t * a.tile + i] = v * v;
  }
  threadgroup_barrier(mem_flags::mem_device);
  if (tid == 0) {
    device_fence();
    atomic_fetch_add_explicit(&ctl[0], 1u, memory_order_relaxed);
  }
}

static bool squares_done(device atomic_uint* ctl, constant PersistArgs& a, uint tid,
                         threadgroup uint& ok) {
  if (tid == 0) {
    bool good = false;
    for (uint n = 0; !good && (a.spin == 0 || n < a.spin); ++n)
      good = atomic_load_explicit(&ctl[0], memory_order_relaxed) >= a.tiles;
    device_fence();
    if (!good) atomic_store_explicit(&ctl[2], 1u, memory_order_relaxed);
    ok = good;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
  return ok != 0;
}

static void total(uint t, SharedFloats tmp, device float* out, constant PersistArgs& a, uint tid,
                  uint threads, threadgroup float* part) {
  float s = 0;
  for (uint i = tid; i < a.tiles * a.tile; i += threads) s += tmp[i];
  s = simd_sum(s);
  if (tid % 32 == 0) part[tid / 32] = s;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid == 0) {
    float z = 0;
    for (uint i = 0; i < threads / 32; ++i) z += part[i];
    out[t] = z + float(t);
  }
}

// Roles by position, consumers first: makes progress only if all 2 tiles threadgroups are resident.
kernel void persist_static(device const float* x [[buffer(0)]], SharedFloats tmp [[buffer(1)]],
                           device float* out [[buffer(2)]], device atomic_uint* ctl [[buffer(3)]],
                           constant PersistArgs& a [[buffer(4)]],
                           uint group [[threadgroup_position_in_grid]],
                           uint tid [[thread_position_in_threadgroup]],
                           uint threads [[threads_per_threadgroup]]) {
  threadgroup uint ok;
  threadgroup float part[32];
  if (group >= a.tiles)
    square(group - a.tiles, x, tmp, ctl, a, tid, threads);
  else if (squares_done(ctl, a, tid, ok))
    total(group, tmp, out, a, tid, threads, part);
}

// Work by ticket: a ticket waits only for lower ones, whose holders have started.
kernel void persist_ticket(device const float* x [[buffer(0)]], SharedFloats tmp [[buffer(1)]],
                           device float* out [[buffer(2)]], device atomic_uint* ctl [[buffer(3)]],
                           constant PersistArgs& a [[buffer(4)]],
                           uint tid [[thread_position_in_threadgroup]],
                           uint threads [[threads_per_threadgroup]]) {
  threadgroup uint ok, ticket;
  threadgroup float part[32];
  for (;;) {
    if (tid == 0) ticket = atomic_fetch_add_explicit(&ctl[1], 1u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint t = ticket;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (t >= 2 * a.tiles) return;
    if (t < a.tiles) {
      square(t, x, tmp, ctl, a, tid, threads);
    } else {
      if (!squares_done(ctl, a, tid, ok)) return;
      total(t - a.tiles, tmp, out, a, tid, threads, part);
    }
  }
}
