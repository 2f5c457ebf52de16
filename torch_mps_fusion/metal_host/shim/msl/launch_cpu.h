// How a kernel gets its arguments on this machine: the entry function is given a Thread.
#pragma once
#define MSL_THREADGROUP(name)                                                                      \
  static const char msl_key_##name = 0;                                                            \
  threadgroup msl_type_##name& name = *(threadgroup msl_type_##name*)(uintptr_t)mh_threadgroup(    \
      &msl_key_##name, sizeof(msl_type_##name), alignof(msl_type_##name), #name, __builtin_FILE(), \
      __builtin_LINE());

namespace msl {
struct Pos {
  uint x, y, z;
  MSL_METHOD operator uint() const { return x; }
  MSL_METHOD operator ushort() const { return (ushort)x; }
  MSL_METHOD operator uint2() const { return (uint2){x, y}; }
  MSL_METHOD operator ushort2() const { return (ushort2){(ushort)x, (ushort)y}; }
  MSL_METHOD operator uint3() const { return (uint3){x, y, z}; }
  MSL_METHOD operator ushort3() const { return (ushort3){(ushort)x, (ushort)y, (ushort)z}; }
};
struct Shared {  // of one threadgroup; the layout is that of MhShared in runtime/abi.h
  Pos group, size, full_size, groups, threads;
  void** buffers;
  void** threadgroups;
};
struct Thread {  // MhThread
  const Shared* shared;
  Pos position;
  uint index;
};
#define MSL_NAMED(name, value) \
  MSL_FN Pos name(const Thread* t) { return value; }
MSL_NAMED(thread_position_in_grid,
          (Pos{t->shared->group.x * t->shared->full_size.x + t->position.x,
               t->shared->group.y * t->shared->full_size.y + t->position.y,
               t->shared->group.z * t->shared->full_size.z + t->position.z}))
MSL_NAMED(thread_position_in_threadgroup, t->position)
MSL_NAMED(threadgroup_position_in_grid, t->shared->group)
MSL_NAMED(threads_per_threadgroup, t->shared->size)
MSL_NAMED(dispatch_threads_per_threadgroup, t->shared->full_size)
MSL_NAMED(threadgroups_per_grid, t->shared->groups)
MSL_NAMED(threads_per_grid, t->shared->threads)
MSL_NAMED(thread_index_in_threadgroup, (Pos{t->index, 0, 0}))
MSL_NAMED(simdgroup_index_in_threadgroup, (Pos{t->index / 32, 0, 0}))
MSL_NAMED(thread_index_in_simdgroup, (Pos{t->index & 31, 0, 0}))
MSL_NAMED(quadgroup_index_in_threadgroup, (Pos{t->index / 4, 0, 0}))
MSL_NAMED(thread_index_in_quadgroup, (Pos{t->index & 3, 0, 0}))
MSL_NAMED(simdgroups_per_threadgroup,
          (Pos{(t->shared->size.x * t->shared->size.y * t->shared->size.z + 31) / 32, 0, 0}))
MSL_NAMED(dispatch_simdgroups_per_threadgroup,
          (Pos{(t->shared->full_size.x * t->shared->full_size.y * t->shared->full_size.z + 31) / 32,
               0, 0}))
MSL_NAMED(threads_per_simdgroup, (Pos{32, 0, 0}))
MSL_NAMED(thread_execution_width, (Pos{32, 0, 0}))

struct Dv {
  void* p;
  template <class T>
  MSL_METHOD operator device T*() const {
    return (device T*)(uintptr_t)p;
  }
  template <class T>
  MSL_METHOD operator device T&() const {
    return *(device T*)(uintptr_t)p;
  }
};
struct Cv {
  void* p;
  template <class T>
  MSL_METHOD operator constant T*() const {
    return (constant T*)(uintptr_t)p;
  }
  template <class T>
  MSL_METHOD operator constant T&() const {
    return *(constant T*)(uintptr_t)p;
  }
};
struct Tv {
  void* p;
  template <class T>
  MSL_METHOD operator threadgroup T*() const {
    return (threadgroup T*)(uintptr_t)p;
  }
  template <class T>
  MSL_METHOD operator threadgroup T&() const {
    return *(threadgroup T*)(uintptr_t)p;
  }
};
}  // namespace msl
#define MSL_ENTRY(name)                                                                          \
  extern "C" __attribute__((visibility("default"), no_sanitize("thread"))) void mh_entry_##name( \
      const msl::Thread* msl_thread)
#define MSL_DEVICE(index) \
  msl::Dv { msl_thread->shared->buffers[index] }
#define MSL_CONSTANT(index) \
  msl::Cv { msl_thread->shared->buffers[index] }
#define MSL_LOCAL(index) \
  msl::Tv { msl_thread->shared->threadgroups[index] }
#define MSL_BUILTIN(name) msl::name(msl_thread)
