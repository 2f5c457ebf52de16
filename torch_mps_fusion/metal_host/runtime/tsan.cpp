// What -fsanitize=thread calls at every access. Its own runtime is not linked: these are ours.
// A volatile access is one through a coherent(device) pointer (shim/msl/target_cpu.h).
#include "shadow.h"

using namespace mh;
#define MH_PC __builtin_return_address(0)
#define MH_SIZE(n)                                                                               \
  void __tsan_read##n(void* p) { note_access(p, n, READ, MH_PC); }                               \
  void __tsan_write##n(void* p) { note_access(p, n, WRITE, MH_PC); }                             \
  void __tsan_unaligned_read##n(void* p) { note_access(p, n, READ, MH_PC); }                     \
  void __tsan_unaligned_write##n(void* p) { note_access(p, n, WRITE, MH_PC); }                   \
  void __tsan_volatile_read##n(void* p) { note_access(p, n, READ | COHERENT, MH_PC); }           \
  void __tsan_volatile_write##n(void* p) { note_access(p, n, WRITE | COHERENT, MH_PC); }         \
  void __tsan_unaligned_volatile_read##n(void* p) { note_access(p, n, READ | COHERENT, MH_PC); } \
  void __tsan_unaligned_volatile_write##n(void* p) { note_access(p, n, WRITE | COHERENT, MH_PC); }
extern "C" {
MH_SIZE(1)
MH_SIZE(2)
MH_SIZE(4)
MH_SIZE(8)
MH_SIZE(16)
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void* __tsan_memcpy(void* to, const void* from, size_t n) {
  note_access(from, u32(n), READ, MH_PC);
  note_access(to, u32(n), WRITE, MH_PC);
  return memcpy(to, from, n);
}
void* __tsan_memmove(void* to, const void* from, size_t n) {
  note_access(from, u32(n), READ, MH_PC);
  note_access(to, u32(n), WRITE, MH_PC);
  return memmove(to, from, n);
}
void* __tsan_memset(void* to, int value, size_t n) {
  note_access(to, u32(n), WRITE, MH_PC);
  return memset(to, value, n);
}
}
