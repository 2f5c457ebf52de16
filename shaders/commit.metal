// Copies the states that a persistent dispatch left in scratch to the tensors that are updated in
// place, if it ended well: control[kControlDone] says so.
//   conv [B][C][W], state [B][Hv][Dk * Dv] float on 16 bytes, both contiguous
//   conv_out, state_out: the same by the strides of CommitArgs; a head is contiguous
// Launch: 256 threads; grid (ceil(max(B C W, B Hv Dk Dv / 4) / 256)). No threadgroup memory.
// Who: thread i copies element i of conv and word i of state.
#include "include/kernel.h"
#include "include/overlap.h"
#include "include/tasks.h"

template <typename T, int THREADS>
[[kernel, max_total_threads_per_threadgroup(THREADS)]] void commit(
    device const uint* control [[buffer(0)]], device const T* conv [[buffer(1)]],
    device const float4* state [[buffer(2)]], device T* conv_out [[buffer(3)]],
    device float* state_out [[buffer(4)]], constant CommitArgs& args [[buffer(5)]],
    uint i [[thread_position_in_grid]]) {
  inputs_ready();
  if (control[kControlDone] == 0) return;
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
