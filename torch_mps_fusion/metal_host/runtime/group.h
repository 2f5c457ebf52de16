// Threadgroups in flight: their memory, how one starts and how its threads end.
#pragma once
#include "state.h"

namespace mh {
constexpr size_t PAGE = 4096;
char* map_memory(size_t bytes);                                 // zero; null if there is none
void keep_groups(std::vector<std::unique_ptr<Group>>& groups);  // for later launches
}  // namespace mh
