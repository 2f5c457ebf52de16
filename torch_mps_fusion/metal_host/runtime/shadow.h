// Checks of every plain access: bounds, races, coherence, initialisation; and their counting.
#pragma once
#include "state.h"

namespace mh {
enum How : u32 { READ = 0, WRITE = 1, ATOMIC = 2, COHERENT = 4, MODIFY = 8 };
void note_access(const void* address, u32 bytes, u32 how, const void* pc);
void start_shadow(Region& r, char* lo, char* hi);
void mark_unwritten(Region& r, size_t offset, size_t bytes);  // whatever was known of it is gone
}  // namespace mh
