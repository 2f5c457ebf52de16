// Where the kernel's library is mapped.
#include <dlfcn.h>

#include "state.h"
#ifdef __linux__
#include <link.h>
#endif

namespace mh {
namespace {
#ifdef __linux__
int find_code(dl_phdr_info* info, size_t, void* out) {
  auto* s = static_cast<Scheduler*>(out);
  auto address = reinterpret_cast<uintptr_t>(s->launch->code);
  bool inside = false;
  uintptr_t hi = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    auto& p = info->dlpi_phdr[i];
    if (p.p_type != PT_LOAD) continue;
    uintptr_t lo = info->dlpi_addr + p.p_vaddr;
    inside = inside || (address >= lo && address < lo + p.p_memsz);
    hi = std::max(hi, lo + p.p_memsz);
  }
  if (!inside) return 0;
  s->code_lo = reinterpret_cast<char*>(info->dlpi_addr);
  s->code_hi = reinterpret_cast<char*>(hi);
  return 1;
}
#endif
}  // namespace

void locate_code(Scheduler& s) {
#ifdef __linux__
  dl_iterate_phdr(find_code, &s);
#else
  Dl_info info;
  if (dladdr(s.launch->code, &info)) {
    s.code_lo = static_cast<char*>(info.dli_fbase);
    s.code_hi = s.code_lo + (16 << 20);
  }
#endif
}
}  // namespace mh
