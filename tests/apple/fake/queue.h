// A serial queue, enough of libdispatch's to know who is on it.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

struct dispatch_queue_s {
  std::mutex mutex;
  std::atomic<std::thread::id> owner{};
};

namespace fake {
inline bool on_queue(const dispatch_queue_s* queue) {
  return queue->owner.load() == std::this_thread::get_id();
}
}  // namespace fake
