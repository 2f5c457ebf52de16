"""MSL texts that several tests share."""

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"

# Two stages in one dispatch, by tickets: stage 2 waits until all tiles of stage 1 are done.
# status: 0 done count, 1 ticket, 2 gave up. limit 0: wait for ever.
TWO_STAGES = (
    HEAD
    + """
#define FENCE atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device)
kernel void two_stages(device const float* x [[buffer(0)]],
                       coherent(device) device float* squares [[buffer(1)]],
                       device float* sums [[buffer(2)]], device atomic_uint* status [[buffer(3)]],
                       constant uint& tiles [[buffer(4)]], constant uint& limit [[buffer(5)]],
                       uint tid [[thread_position_in_threadgroup]],
                       uint threads [[threads_per_threadgroup]]) {
  threadgroup uint job, good;
  for (;;) {
    if (tid == 0) job = atomic_fetch_add_explicit(&status[1], 1u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint j = job;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (j >= 2 * tiles) return;
    if (j < tiles) {
      uint i = j * threads + tid;
      squares[i] = x[i] * x[i];
      threadgroup_barrier(mem_flags::mem_device);
      if (tid == 0) {
        FENCE;
        atomic_fetch_add_explicit(&status[0], 1u, memory_order_relaxed);
      }
    } else {
      if (tid == 0) {
        uint n = 0;
        while (atomic_load_explicit(&status[0], memory_order_relaxed) < tiles &&
               (!limit || n < limit))
          ++n;
        good = !limit || n < limit;
        if (!good) atomic_store_explicit(&status[2], 1u, memory_order_relaxed);
        FENCE;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
      if (!good) return;
      float sum = 0;
      for (uint i = tid; i < tiles * threads; i += threads) sum += squares[i];
      sum = simd_sum(sum);
      if (tid == 0) sums[j - tiles] = sum;
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }
}
"""
)
