#include "isolate.h"

#include <sys/mman.h>

#include "group.h"
#include "report.h"

namespace mh {
std::vector<Copy> isolate(Scheduler& s) {
  std::vector<u32> by_address;
  const MhBuffer* b = s.launch->buffers;
  for (u32 i = 0; i < s.launch->buffer_count; ++i)
    if (b[i].data) by_address.push_back(i);
  std::sort(by_address.begin(), by_address.end(),
            [&](u32 x, u32 y) { return b[x].data < b[y].data; });
  std::vector<Copy> copies;
  std::vector<size_t> home(s.launch->buffer_count);
  for (u32 i : by_address) {
    char *lo = static_cast<char*>(b[i].data), *hi = lo + b[i].bytes;
    if (copies.empty() || lo >= copies.back().hi) {
      copies.push_back({lo, hi, b[i].name, b[i].poison != 0, nullptr, nullptr, 0});
    } else {
      copies.back().hi = std::max(copies.back().hi, hi);
      copies.back().name += std::string("/") + b[i].name;
      copies.back().poison = copies.back().poison && b[i].poison;
    }
    home[i] = copies.size() - 1;
  }
  for (Copy& c : copies) {
    size_t bytes = size_t(c.hi - c.lo), shift = uintptr_t(c.lo) & (PAGE - 1);
    c.block_bytes = 2 * GUARD + ((bytes + shift + PAGE - 1) & ~(PAGE - 1));
    c.block = map_memory(c.block_bytes);
    if (!c.block) {
      fail("crash", "no memory for the checked copy of `" + c.name + "`");
      return copies;
    }
    c.data = c.block + GUARD + shift;
    if (c.poison)
      memset(c.data, 0xff, bytes);
    else
      memcpy(c.data, c.lo, bytes);
  }
  for (u32 i : by_address)
    s.buffers[i] = copies[home[i]].data + (static_cast<char*>(b[i].data) - copies[home[i]].lo);
  return copies;
}

void copy_back(std::vector<Copy>& copies) {
  for (Copy& c : copies) {
    memcpy(c.lo, c.data, size_t(c.hi - c.lo));
    munmap(c.block, c.block_bytes);
  }
}
}  // namespace mh
