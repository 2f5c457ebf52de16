#include "signals.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ucontext.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "report.h"

namespace mh {
namespace {
constexpr int CRASHES[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
constexpr int LATE = SIGUSR2;
struct sigaction previous[64];
std::mutex handlers_lock;
int handlers_users = 0;

const void* pc_of(void* context) {
  auto* c = static_cast<ucontext_t*>(context);
#if defined(__APPLE__) && defined(__aarch64__)
  return reinterpret_cast<void*>(c->uc_mcontext->__ss.__pc);
#elif defined(__APPLE__)
  return reinterpret_cast<void*>(c->uc_mcontext->__ss.__rip);
#elif defined(__aarch64__)
  return reinterpret_cast<void*>(c->uc_mcontext.pc);
#else
  return reinterpret_cast<void*>(c->uc_mcontext.gregs[REG_RIP]);
#endif
}
bool in_kernel(const void* pc) {
  auto* p = static_cast<const char*>(pc);
  return p >= S->code_lo && p < S->code_hi;
}
// The handler runs on a stack of its own and never returns there.
[[noreturn]] void leave_handler(int signal) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  leave();
}
const char* cause(int signal, const siginfo_t* info) {
#ifdef __linux__
  // The processor gives no address for an aligned access at an odd one.
  if (signal == SIGBUS || (signal == SIGSEGV && info->si_code == SI_KERNEL))
    return "touches an address that is not aligned for its type, or is none";
#endif
  (void)info;
  switch (signal) {
    case SIGFPE:
      return "divides an integer by zero";
    case SIGILL:
    case SIGTRAP:
      return "reaches code that must not be reached";
    default:
      return "touches an address that does not exist, or has used up its stack";
  }
}

void on_late(int, siginfo_t*, void* context) {
  if (!S || !current) return;
  if (!S->aborted) {
    std::string where = in_kernel(pc_of(context))
                            ? " at " + place(static_cast<const char*>(pc_of(context)) + 1)
                            : std::string();
    if (where.empty()) {
      S->late = true;  // the runtime itself is running: the next switch or tick takes it from there
      return;
    }
    fail("timeout", words("the launch ran past its limit of %u ms; ", S->o.time_limit_ms) +
                        who(current) + " runs" + where + "; " + waiting());
  }
  if (in_kernel(pc_of(context))) leave_handler(LATE);
}

void on_crash(int signal, siginfo_t* info, void* context) {
  if (!S || !current) {  // not ours
    sigaction(signal, &previous[signal], nullptr);
    raise(signal);
    return;
  }
  const void* pc = pc_of(context);
  std::string where = in_kernel(pc)      ? " at " + place(static_cast<const char*>(pc) + 1)
                      : current->entered ? " at " + place(current->entered)
                                         : " in a library function";
  fail("crash", who(current) + " " + cause(signal, info) + where);
  where.~basic_string();
  leave_handler(signal);
}

void set_handler(int signal, void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action{};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, &previous[signal]);
}
}  // namespace

void install_handlers() {
  std::lock_guard lock(handlers_lock);
  if (handlers_users++) return;
  for (int s : CRASHES) set_handler(s, on_crash);
  set_handler(LATE, on_late);
}
void restore_handlers() {
  std::lock_guard lock(handlers_lock);
  if (--handlers_users) return;
  for (int s : CRASHES) sigaction(s, &previous[s], nullptr);
  sigaction(LATE, &previous[LATE], nullptr);
}

HandlerStack::HandlerStack() : memory_(64 * 1024) {
  stack_t own{};
  own.ss_sp = memory_.data();
  own.ss_size = memory_.size();
  sigaltstack(&own, &previous_);
}
HandlerStack::~HandlerStack() {
  if (!previous_.ss_sp) previous_.ss_flags = SS_DISABLE;
  sigaltstack(&previous_, nullptr);
}

struct Watchdog::State {
  std::mutex lock;
  std::condition_variable wake;
  std::vector<pthread_t> watched;
  bool over = false;
  std::thread thread;
};

Watchdog::Watchdog(u32 milliseconds) : state_(std::make_unique<State>()) {
  if (!milliseconds) return;
  state_->thread = std::thread([s = state_.get(), milliseconds] {
    std::unique_lock lock(s->lock);
    auto wait = std::chrono::milliseconds(milliseconds);
    while (!s->wake.wait_for(lock, wait, [s] { return s->over; })) {
      for (pthread_t t : s->watched) pthread_kill(t, LATE);
      wait = std::chrono::milliseconds(5);
    }
  });
}
void Watchdog::watch(pthread_t thread) {
  std::lock_guard lock(state_->lock);
  state_->watched.push_back(thread);
}
void Watchdog::unwatch(pthread_t thread) {
  std::lock_guard lock(state_->lock);
  std::erase_if(state_->watched, [&](pthread_t t) { return pthread_equal(t, thread); });
}
Watchdog::~Watchdog() {
  {
    std::lock_guard lock(state_->lock);
    state_->over = true;
  }
  state_->wake.notify_all();
  if (state_->thread.joinable()) state_->thread.join();
}
}  // namespace mh
