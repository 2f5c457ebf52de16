// What the fake device has seen: faults, and counts of what was made.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>

namespace fake {

// Notes a fault; a test that leaves one fails.
void fault(const std::string& text);

// Notes a fault and throws it.
[[noreturn]] void refuse(const std::string& text);

// All faults since the last call, one a line.
std::string take_faults();

// Objective-C objects that are alive, of one class or ("") of all.
long live_objects(const std::string& cls);

// Autorelease pools that are open on this thread.
int open_pools();

// Drains this thread's pools, the newest first, until `kept` are open.
void close_pools(size_t kept);

struct Counters {
  std::atomic<long> libraries{0}, pipelines{0}, dispatches{0}, barriers{0};
};
Counters& counters();

}  // namespace fake
