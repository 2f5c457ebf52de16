// How a kernel gets its arguments on an NVIDIA GPU: one parameter, a struct by value.
//   buffers[i]        address of buffer(i) in global memory
//   threadgroups[i]   byte offset of threadgroup(i) in the launch's dynamic shared memory, a
//                     multiple of 16
//   values[i]         on request (MSL_VALUES of them), the bytes of the i-th `constant T&` of the
//                     module's kernel, where they reach a thread without a load from memory
// Everything is inlined into the entry, so that the threadgroup variables that a kernel needs are
// those that its entry names.
#pragma once
namespace msl {
constexpr uint BUFFERS = 31, THREADGROUPS = 31, VALUE_BYTES = 128;
struct alignas(16) Value {
  char bytes[VALUE_BYTES];
};
struct Arguments {
  void* buffers[BUFFERS];
  uint threadgroups[THREADGROUPS];
#ifdef MSL_VALUES
  Value values[MSL_VALUES];
#endif
};
struct Pos {
  uint x, y, z;
  MSL_METHOD operator uint() const { return x; }
  MSL_METHOD operator ushort() const { return (ushort)x; }
  MSL_METHOD operator uint2() const { return (uint2){x, y}; }
  MSL_METHOD operator ushort2() const { return (ushort2){(ushort)x, (ushort)y}; }
  MSL_METHOD operator uint3() const { return (uint3){x, y, z}; }
  MSL_METHOD operator ushort3() const { return (ushort3){(ushort)x, (ushort)y, (ushort)z}; }
};
#define MSL_REGISTERS(name)                                                              \
  (Pos{(uint)__nvvm_read_ptx_sreg_##name##_x(), (uint)__nvvm_read_ptx_sreg_##name##_y(), \
       (uint)__nvvm_read_ptx_sreg_##name##_z()})
#define MSL_NAMED(name, value) \
  MSL_FN Pos name() { return value; }
MSL_NAMED(thread_position_in_threadgroup, MSL_REGISTERS(tid))
MSL_NAMED(threadgroup_position_in_grid, MSL_REGISTERS(ctaid))
MSL_NAMED(threads_per_threadgroup, MSL_REGISTERS(ntid))
MSL_NAMED(threadgroups_per_grid, MSL_REGISTERS(nctaid))
MSL_FN Pos thread_position_in_grid() {
  const Pos t = MSL_REGISTERS(tid), g = MSL_REGISTERS(ctaid), n = MSL_REGISTERS(ntid);
  return Pos{t.x + g.x * n.x, t.y + g.y * n.y, t.z + g.z * n.z};
}
// grids are whole threadgroups on this target
MSL_FN Pos threads_per_grid() {
  const Pos g = MSL_REGISTERS(nctaid), n = MSL_REGISTERS(ntid);
  return Pos{g.x * n.x, g.y * n.y, g.z * n.z};
}
MSL_FN uint flat_index() {
  const Pos t = MSL_REGISTERS(tid), n = MSL_REGISTERS(ntid);
  return t.x + n.x * (t.y + n.y * t.z);
}
MSL_FN uint flat_size() {
  const Pos n = MSL_REGISTERS(ntid);
  return n.x * n.y * n.z;
}
MSL_NAMED(dispatch_threads_per_threadgroup, MSL_REGISTERS(ntid))
MSL_NAMED(thread_index_in_threadgroup, (Pos{flat_index(), 0, 0}))
MSL_NAMED(simdgroup_index_in_threadgroup, (Pos{flat_index() / 32, 0, 0}))
MSL_NAMED(thread_index_in_simdgroup, (Pos{target::lane(), 0, 0}))
MSL_NAMED(quadgroup_index_in_threadgroup, (Pos{flat_index() / 4, 0, 0}))
MSL_NAMED(thread_index_in_quadgroup, (Pos{target::lane() & 3, 0, 0}))
MSL_NAMED(simdgroups_per_threadgroup, (Pos{(flat_size() + 31) / 32, 0, 0}))
MSL_NAMED(dispatch_simdgroups_per_threadgroup, (Pos{(flat_size() + 31) / 32, 0, 0}))
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
// a constant reference to bytes of the launch's own parameter
struct Pv {
  const void* p;
  template <class T>
  MSL_METHOD operator constant T&() const {
    static_assert(sizeof(T) <= VALUE_BYTES, "a constant argument by value has at most 128 bytes");
    return *(constant T*)p;
  }
};
extern threadgroup __attribute__((aligned(16))) char dynamic_memory[];
struct Tv {
  uint offset;
  template <class T>
  MSL_METHOD operator threadgroup T*() const {
    return (threadgroup T*)(dynamic_memory + offset);
  }
  template <class T>
  MSL_METHOD operator threadgroup T&() const {
    return *(threadgroup T*)(dynamic_memory + offset);
  }
};
}  // namespace msl
#define MSL_THREADGROUP(name) \
  static threadgroup __attribute__((loader_uninitialized)) msl_type_##name name;
// the prefix, which ptx.py takes away, keeps the entry from being an overload of the kernel
#define MSL_ENTRY(name)                                                   \
  extern "C" __attribute__((nvptx_kernel, flatten)) void mh_entry_##name( \
      msl::Arguments msl_arguments)
#define MSL_DEVICE(index) \
  msl::Dv { msl_arguments.buffers[index] }
#define MSL_CONSTANT(index) \
  msl::Cv { msl_arguments.buffers[index] }
#define MSL_VALUE(slot) \
  msl::Pv { &msl_arguments.values[slot] }
#define MSL_LOCAL(index) \
  msl::Tv { msl_arguments.threadgroups[index] }
#define MSL_BUILTIN(name) msl::name()
