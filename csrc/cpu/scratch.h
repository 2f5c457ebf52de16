// Scratch memory of a thread.
#pragma once

#include <cstdint>

namespace tmf::cpu {

// At least this many floats, aligned to a cache line, valid until the thread's next call. Kept
// between calls: fresh pages for every call would cost as much as a short call itself.
float* thread_scratch(int64_t floats);

}  // namespace tmf::cpu
