// Copies the states that a persistent dispatch left in scratch to the tensors that are updated in
// place, if it ended well: kSlotReady says so, and is withdrawn, so that a launch of which no
// worker runs cannot be taken for the one before.
//   conv [B][C][W], state [B][Hv][Dk * Dv] float on 16 bytes, both contiguous
//   conv_out, state_out: the same by the strides of CommitArgs; a head is contiguous
// Launch: 256 threads; grid (ceil(max(B C W, B Hv Dk Dv / 4) / 256)). No threadgroup memory.
// Who: thread i copies element i of conv and word i of state; the threadgroup that counts last
// withdraws the bit.
#include "include/kernel.h"
#include "include/overlap.h"
#include "include/tasks.h"

template <typename T, int THREADS>
[[kernel, max_total_threads_per_threadgroup(THREADS)]] void commit(
    device atomic_uint* control [[buffer(0)]], device const T* conv [[buffer(1)]],
    device const float4* state [[buffer(2)]], device T* conv_out [[buffer(3)]],
    device float* state_out [[buffer(4)]], constant CommitArgs& args [[buffer(5)]],
    uint i [[thread_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint groups [[threadgroups_per_grid]]) {
  inputs_ready();
  const bool ready =
      (atomic_load_explicit(control + kControlSlot, memory_order_relaxed) & kSlotReady) != 0;
  threadgroup_barrier(mem_flags::mem_none);  // all have read it before this threadgroup counts
  if (tid == 0 &&
      atomic_fetch_add_explicit(control + kControlCopied, 1u, memory_order_relaxed) == groups - 1) {
    atomic_store_explicit(control + kControlCopied, 0u, memory_order_relaxed);
    atomic_fetch_and_explicit(control + kControlSlot, ~uint(kSlotReady), memory_order_relaxed);
  }
  if (!ready) return;
  if (i < args.batch * args.channels * args.width) {
    const uint t = i % args.width, c = i / args.width % args.channels;
    const uint b = i / args.width / args.channels;
    conv_out[long(b) * args.conv_batch + long(c) * args.conv_channel + long(t) * args.conv_time] =
        conv[i];
  }
  const uint words = args.head_elements / 4;
  if (i < args.batch * args.heads * words) {
    const uint b = i / words / args.heads, h = i / words % args.heads;
    device float* head = state_out + long(b) * args.state_batch + long(h) * args.state_head;
    ((device float4*)head)[i % words] = state[i];
  }
}

TMF_KERNELS("commit", "n256__thread", commit, 256)
