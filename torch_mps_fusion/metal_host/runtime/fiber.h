// Switching stacks: the only machine-dependent part of the runtime.
#pragma once
#include <cstdint>
#include <cstring>

extern "C" void mh_swap(void** save, void* to);  // leaves, returns when switched back to
extern "C" [[noreturn]] void mh_jump(void* to);  // leaves for good

#ifdef __APPLE__
#define MH_SYMBOL(n) "_" n
#define MH_HIDDEN(n) ".private_extern _" n "\n"
#else
#define MH_SYMBOL(n) n
#define MH_HIDDEN(n) ".hidden " n "\n"
#endif

#if defined(__x86_64__)
asm(".text\n.globl " MH_SYMBOL("mh_swap") "\n" MH_HIDDEN("mh_swap")
    MH_SYMBOL("mh_swap") ":\n"
    " push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
    " mov %rsp,(%rdi)\n mov %rsi,%rsp\n"
    " pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n"
    ".globl " MH_SYMBOL("mh_jump") "\n" MH_HIDDEN("mh_jump")
    MH_SYMBOL("mh_jump") ":\n"
    " mov %rdi,%rsp\n"
    " pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");
namespace mh {
inline void* prepare_stack(char* top, void (*entry)()) {
  void** sp = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t(15));
  *--sp = nullptr;  // keeps the stack aligned as after a call
  *--sp = reinterpret_cast<void*>(entry);
  sp -= 6;
  memset(sp, 0, 6 * sizeof(void*));
  return sp;
}
}  // namespace mh
#elif defined(__aarch64__)
#define MH_RESTORE                                                        \
  " ldp x19,x20,[sp,#0]\n ldp x21,x22,[sp,#16]\n ldp x23,x24,[sp,#32]\n"  \
  " ldp x25,x26,[sp,#48]\n ldp x27,x28,[sp,#64]\n ldp x29,x30,[sp,#80]\n" \
  " ldp d8,d9,[sp,#96]\n ldp d10,d11,[sp,#112]\n ldp d12,d13,[sp,#128]\n" \
  " ldp d14,d15,[sp,#144]\n add sp,sp,#160\n ret\n"
asm(".text\n.p2align 2\n.globl " MH_SYMBOL("mh_swap") "\n" MH_HIDDEN("mh_swap")
    MH_SYMBOL("mh_swap") ":\n"
    " sub sp,sp,#160\n"
    " stp x19,x20,[sp,#0]\n stp x21,x22,[sp,#16]\n stp x23,x24,[sp,#32]\n"
    " stp x25,x26,[sp,#48]\n stp x27,x28,[sp,#64]\n stp x29,x30,[sp,#80]\n"
    " stp d8,d9,[sp,#96]\n stp d10,d11,[sp,#112]\n stp d12,d13,[sp,#128]\n"
    " stp d14,d15,[sp,#144]\n"
    " mov x9,sp\n str x9,[x0]\n mov sp,x1\n" MH_RESTORE
    ".globl " MH_SYMBOL("mh_jump") "\n" MH_HIDDEN("mh_jump")
    MH_SYMBOL("mh_jump") ":\n mov sp,x0\n" MH_RESTORE);
namespace mh {
inline void* prepare_stack(char* top, void (*entry)()) {
  uintptr_t sp = (reinterpret_cast<uintptr_t>(top) & ~uintptr_t(15)) - 160;
  memset(reinterpret_cast<void*>(sp), 0, 160);
  reinterpret_cast<void**>(sp)[11] = reinterpret_cast<void*>(entry);  // x30
  return reinterpret_cast<void*>(sp);
}
}  // namespace mh
#else
#error "metal_host runs on x86-64 and aarch64: this machine has no stack switch in fiber.h"
#endif
