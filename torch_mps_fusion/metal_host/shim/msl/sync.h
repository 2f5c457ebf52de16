// Barriers, fences and their flags.
#pragma once
namespace metal {
enum class mem_flags : uint {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
  mem_threadgroup_imageblock = 8,
  mem_object_data = 16
};
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }
enum memory_order {
  memory_order_relaxed = 0,
#if __METAL_VERSION__ >= 410
  memory_order_acquire = 2,
  memory_order_release = 3,
  memory_order_acq_rel = 4,
#endif
  memory_order_seq_cst = 5
};
enum thread_scope {
  thread_scope_thread,
  thread_scope_simdgroup,
  thread_scope_threadgroup,
  thread_scope_device,
  thread_scope_system
};
MSL_FN void threadgroup_barrier(mem_flags flags, MSL_SITE) {
  msl::target::barrier((uint)flags, MSL_HERE);
}
MSL_FN void simdgroup_barrier(mem_flags flags, MSL_SITE) {
  msl::target::simd_barrier((uint)flags, MSL_HERE);
}
MSL_FN void atomic_thread_fence(mem_flags flags, memory_order order,
                                thread_scope scope = thread_scope_device) {
  msl::target::fence((uint)flags, (uint)order, (uint)scope);
}
}  // namespace metal
