// Bound memory in a place of its own, with nothing valid around it.
#pragma once
#include <string>

#include "state.h"

namespace mh {
struct Copy {
  char *lo, *hi;  // the caller's memory
  std::string name;
  bool poison;
  char *block, *data;
  size_t block_bytes;
};
constexpr u32 GUARD = 1 << 20;  // bytes on either side that are mapped and belong to nobody
// Copies the bound buffers and binds the copies. Bindings that overlap (views of one storage) share
// a copy.
std::vector<Copy> isolate(Scheduler& s);
void copy_back(std::vector<Copy>& copies);
}  // namespace mh
