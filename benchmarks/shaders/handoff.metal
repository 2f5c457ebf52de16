// One producer threadgroup hands parts to consumers: out[g - 1] = (sum of all parts) + g.
//   parts [kParts] uint, flags [kParts + 1] uint, zeroed: one a part, then the error word
//   out [groups - 1] uint, poisoned by the caller
//   grid: (1 + consumers) threadgroups of 32; every wait is bounded and expiry sets the error word.
// Mistakes that the caller can switch on: kNoFence, kStall (the last part is never published).
#include <metal_stdlib>
using namespace metal;

constant bool kNoFence [[function_constant(0)]];
constant bool kStall [[function_constant(1)]];

constant constexpr uint kParts = 4;
constant constexpr uint kBound = 2000;

void fence() {
  if (!kNoFence) {
    atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
  }
}

kernel void handoff(coherent(device) device uint* parts [[buffer(0)]],
                    device atomic_uint* flags [[buffer(1)]],
                    device atomic_uint* cancel [[buffer(2)]], device uint* out [[buffer(3)]],
                    uint g [[threadgroup_position_in_grid]],
                    uint lane [[thread_index_in_threadgroup]]) {
  if (lane != 0) return;
  device atomic_uint* error = flags + kParts;
  if (g == 0) {
    for (uint i = 0; i < kParts; ++i) {
      if (atomic_load_explicit(cancel, memory_order_relaxed) != 0) {
        atomic_store_explicit(error, 2u, memory_order_relaxed);
        return;
      }
      if (kStall && i == kParts - 1) return;
      parts[i] = 10 * (i + 1);
      fence();
      atomic_store_explicit(flags + i, 1u, memory_order_relaxed);
    }
    return;
  }
  uint sum = 0;
  for (uint i = 0; i < kParts; ++i) {
    uint polls = 0;
    while (atomic_load_explicit(flags + i, memory_order_relaxed) == 0) {
      if (atomic_load_explicit(error, memory_order_relaxed) != 0) return;
      if (++polls > kBound) {
        atomic_store_explicit(error, 1u, memory_order_relaxed);
        return;
      }
    }
    fence();
    sum += parts[i];
  }
  out[g - 1] = sum + g;
}
