// A launch that runs too long, and a kernel that traps, end in a report.
#pragma once
#include <pthread.h>
#include <signal.h>

#include "state.h"

namespace mh {
void install_handlers();  // once for each launch
void restore_handlers();
class HandlerStack {  // lets the handlers run when a fiber's own stack is used up
 public:
  HandlerStack();
  ~HandlerStack();
  HandlerStack(const HandlerStack&) = delete;

 private:
  std::vector<char> memory_;
  stack_t previous_{};
};
class Watchdog {  // signals the given OS threads once the time is over
 public:
  explicit Watchdog(u32 milliseconds);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  void watch(pthread_t thread);
  void unwatch(pthread_t thread);

 private:
  struct State;
  std::unique_ptr<State> state_;
};
}  // namespace mh
