#include "verify.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "constants.h"
#include "order.h"
#include "persistent.h"

namespace tmf::plan {
namespace {

// Adjacent bytes of a buffer that one task touches.
struct Run {
  uint64_t begin, end;
  uint32_t task;
  int32_t wait;  // as Touch has it
};

// What tasks do with one buffer.
struct Use {
  std::vector<Run> reads;
  std::vector<Run> writes;  // by address
  bool made = false;        // the dispatch writes it
};

// Calls do(run, begin, end) for each of `runs`, by address and disjoint, that has bytes of
// [begin, end).
template <typename Do>
void for_overlaps(const std::vector<Run>& runs, uint64_t begin, uint64_t end, const Do& act) {
  auto run = std::upper_bound(runs.begin(), runs.end(), begin,
                              [](uint64_t at, const Run& r) { return at < r.end; });
  for (; run != runs.end() && run->begin < end; ++run) {
    act(*run, std::max(begin, run->begin), std::min(end, run->end));
  }
}

TaskArgs task_args(const Dispatch& d) {
  TaskArgs args{};
  const auto found = std::find_if(d.arguments.rbegin(), d.arguments.rend(),
                                  [](const Argument& a) { return a.buffer < 0; });
  if (found != d.arguments.rend() && found->bytes.size() == sizeof args) {
    std::memcpy(&args, found->bytes.data(), sizeof args);
  }
  return args;
}

class Memory {
 public:
  Memory(const Program& program, size_t dispatch, const TaskOrder& order, Findings& findings)
      : p_(program),
        i_(dispatch),
        d_(program.dispatches[dispatch]),
        order_(order),
        findings_(findings),
        uses_(program.buffers.size()) {}

  void run() {
    for (const Argument& a : d_.arguments) {
      if (a.buffer >= 0 && writes(a.access)) use(a.buffer).made = true;
    }
    std::vector<Touch> sound;
    for (const Touch& t : d_.tasks->touches) {
      if (check(t)) join(sound, t);
    }
    for (const Touch& t : sound) add(t);
    for (size_t b = 0; b < uses_.size(); ++b) {
      std::sort(uses_[b].writes.begin(), uses_[b].writes.end(),
                [](const Run& x, const Run& y) { return x.begin < y.begin; });
      one_writer(b);
      if (uses_[b].made) reads_behind_writes(b);
    }
    all_written();
    for (size_t a = 0; a < uses_.size(); ++a) {
      for (size_t b = 0; b < uses_.size(); ++b) {
        if (a != b && p_.buffers[a].storage == p_.buffers[b].storage) shared(a, b);
      }
    }
    for (const Argument& a : d_.arguments) untouched(a);
  }

 private:
  Use& use(int32_t buffer) { return uses_[static_cast<size_t>(buffer)]; }
  const std::string& name(size_t buffer) const { return p_.buffers[buffer].name; }
  std::string task(const Run& r) const { return named(*d_.tasks, r.task); }
  std::string bytes(uint64_t begin, uint64_t end, size_t buffer) const {
    return "bytes " + std::to_string(begin) + " to " + std::to_string(end - 1) + " of " +
           name(buffer);
  }
  bool over(const Run& first, const Run& then) const {
    return order_.over(first.task, then.task, then.wait);
  }

  bool check(const Touch& t) {
    if (t.task >= d_.tasks->records.size() || t.buffer < 0 ||
        static_cast<size_t>(t.buffer) >= uses_.size()) {
      findings_.add("touch", "of task " + std::to_string(t.task) + " and buffer " +
                                 std::to_string(t.buffer) + ", which do not exist");
      return false;
    }
    const std::string& buffer = p_.buffers[t.buffer].name;
    const std::string who = named(*d_.tasks, t.task);
    if (t.wait >= 0 && static_cast<uint32_t>(t.wait) >= d_.tasks->records[t.task].waits) {
      findings_.add("touch", who + " has no wait " + std::to_string(t.wait));
      return false;
    }
    const uint64_t size = p_.buffers[t.buffer].bytes;
    // In this order nothing overflows: every product that is formed is below `size`.
    const bool inside =
        t.rows > 0 && t.bytes > 0 && t.bytes <= size && t.offset <= size - t.bytes &&
        (t.rows == 1 ||
         (t.pitch >= t.bytes && t.rows - 1 <= (size - t.bytes - t.offset) / t.pitch));
    if (!inside) {
      findings_.add("bounds", who + " touches " + std::to_string(t.rows) + " runs of " +
                                  std::to_string(t.bytes) + " bytes, " + std::to_string(t.pitch) +
                                  " apart from byte " + std::to_string(t.offset) + " on, of " +
                                  buffer + ", which has " + std::to_string(size));
      return false;
    }
    if (!bound(t)) {
      findings_.add("bounds", who + (t.write ? " writes " : " reads ") +
                                  bytes(t.offset, last(t), t.buffer) +
                                  ", which the dispatch does not bind for it");
    }
    return true;
  }

  // Adds a touch that was checked, to the one before it if both are one run.
  static void join(std::vector<Touch>& touches, const Touch& t) {
    if (!touches.empty()) {
      Touch& before = touches.back();
      const bool alike = before.task == t.task && before.buffer == t.buffer &&
                         before.write == t.write && before.wait == t.wait &&
                         before.rows == t.rows && before.pitch == t.pitch;
      if (alike && before.offset + before.bytes == t.offset) {
        before.bytes += t.bytes;
        return;
      }
    }
    touches.push_back(t);
  }

  void add(Touch t) {
    if (t.pitch == t.bytes) t.bytes *= std::exchange(t.rows, 1);
    std::vector<Run>& runs = t.write ? use(t.buffer).writes : use(t.buffer).reads;
    for (uint64_t row = 0; row < t.rows; ++row) {
      const uint64_t begin = t.offset + row * t.pitch;
      runs.push_back({begin, begin + t.bytes, t.task, t.wait});
    }
  }

  static uint64_t last(const Touch& t) { return t.offset + (t.rows - 1) * t.pitch + t.bytes; }

  // A buffer that the dispatch makes may be read as well.
  bool bound(const Touch& t) const {
    return std::any_of(d_.arguments.begin(), d_.arguments.end(), [&](const Argument& a) {
      return a.buffer == t.buffer && (writes(a.access) || (!t.write && reads(a.access))) &&
             a.offset <= t.offset && last(t) <= a.offset + a.extent;
    });
  }

  void one_writer(size_t b) {
    const std::vector<Run>& writes = uses_[b].writes;
    for (size_t i = 1; i < writes.size(); ++i) {
      if (writes[i].begin >= writes[i - 1].end) continue;
      findings_.add("writer",
                    bytes(writes[i].begin, std::min(writes[i].end, writes[i - 1].end), b) +
                        " are written by " + task(writes[i - 1]) + " and " + task(writes[i]));
    }
  }

  void reads_behind_writes(size_t b) {
    for (const Run& r : uses_[b].reads) {
      uint64_t written = r.begin;
      const auto unwritten = [&](uint64_t until) {
        if (written < until) {
          findings_.add("read",
                        task(r) + " reads " + bytes(written, until, b) + ", which no task writes");
        }
      };
      for_overlaps(uses_[b].writes, r.begin, r.end, [&](const Run& w, uint64_t from, uint64_t to) {
        unwritten(from);
        written = std::max(written, to);
        if (over(w, r)) return;
        findings_.add("read", task(r) + " reads " + bytes(from, to, b) + " and does not wait for " +
                                  task(w) + ", which writes them");
      });
      unwritten(r.end);
    }
  }

  // Results and what other tasks read: as many bytes as the dispatch declares.
  void all_written() {
    for (const Argument& a : d_.arguments) {
      if (a.buffer < 0 || !writes(a.access)) continue;
      uint64_t written = 0;
      for (const Run& r : use(a.buffer).writes) written += r.end - r.begin;
      if (written == a.written) continue;
      findings_.add("written", std::to_string(written) + " bytes of " + name(a.buffer) +
                                   ", declared are " + std::to_string(a.written));
    }
  }

  // Writes of b against all that is done with a, in the memory that they share.
  void shared(size_t a, size_t b) {
    for (const Run& w : uses_[b].writes) {
      for (const Run& r : uses_[a].reads) {
        if (r.end <= w.begin || w.end <= r.begin || over(r, w)) continue;
        const uint64_t from = std::max(r.begin, w.begin), to = std::min(r.end, w.end);
        if (!over(w, r) || !uses_[a].made) {
          conflict(w, b, r, " reads ", from, to, a);
          continue;
        }
        for_overlaps(uses_[a].writes, from, to, [&](const Run& source, uint64_t f, uint64_t t) {
          if (!over(w, source)) conflict(w, b, r, " has still to read ", f, t, a);
        });
      }
      for_overlaps(uses_[a].writes, w.begin, w.end, [&](const Run& r, uint64_t from, uint64_t to) {
        if (over(w, r) || (over(r, w) && !needed_later(a))) return;
        conflict(w, b, r, over(r, w) ? " made for later: " : " writes ", from, to, a);
      });
    }
  }

  void conflict(const Run& w, size_t b, const Run& r, const char* does, uint64_t from, uint64_t to,
                size_t a) {
    findings_.add("memory", task(w) + " writes " + name(b) + " over what " + task(r) + does +
                                bytes(from, to, a));
  }

  bool needed_later(size_t buffer) const {
    if (p_.buffers[buffer].role != Role::scratch) return true;
    for (size_t i = i_ + 1; i < p_.dispatches.size(); ++i) {
      for (const Argument& a : p_.dispatches[i].arguments) {
        if (a.buffer == static_cast<int32_t>(buffer) && reads(a.access)) return true;
      }
    }
    return false;
  }

  // An argument without touches against all others.
  void untouched(const Argument& a) {
    if (a.buffer < 0 || a.access == Access::none || touched(a.buffer)) return;
    for (const Argument& other : d_.arguments) {
      if (&other == &a || other.buffer < 0 || (!writes(a.access) && !writes(other.access)) ||
          p_.buffers[a.buffer].storage != p_.buffers[other.buffer].storage) {
        continue;
      }
      const uint64_t from = std::max(a.offset, other.offset);
      const uint64_t to = std::min(a.offset + a.extent, other.offset + other.extent);
      if (from >= to || other_slot(a, other) || other_slot(other, a)) continue;
      findings_.add("memory", bytes(from, to, a.buffer) +
                                  ", used by every task, share memory with " + name(other.buffer));
    }
  }

  // The old states in one slot and the new ones in the other, which begins where the first ends or
  // later.
  bool other_slot(const Argument& from, const Argument& to) const {
    const bool conv = from.index == 6 && to.index == 7, state = from.index == 11 && to.index == 12;
    const auto slots = d_.kernel.constants.find(kSlots);
    if (slots == d_.kernel.constants.end() || slots->second == 0 || (!conv && !state)) return false;
    const TaskArgs args = task_args(d_);
    const uint64_t es = d_.kernel.name.starts_with("tmf_persistent_f32_") ? 4 : 2;
    const uint64_t slot = conv ? args.conv_slot * es : args.state_slot * uint64_t{4};
    return from.offset == to.offset && from.extent <= 2 * slot && to.extent <= 2 * slot;
  }

  bool touched(int32_t buffer) { return !use(buffer).reads.empty() || !use(buffer).writes.empty(); }

  const Program& p_;
  size_t i_;
  const Dispatch& d_;
  const TaskOrder& order_;
  Findings& findings_;
  std::vector<Use> uses_;  // by buffer
};

// The grid is the workers and perhaps a clock, the kernel takes all records, and a thread publishes
// each signal.
void check_launch(const Dispatch& d, Findings& findings) {
  const TaskProgram& tasks = *d.tasks;
  const uint64_t taken = task_args(d).tasks;
  if (taken != tasks.records.size()) {
    findings.add("records", std::to_string(tasks.records.size()) +
                                " in the table, the kernel takes " + std::to_string(taken));
  }
  const uint64_t workers = uint64_t{d.grid[0]} * d.grid[1] * d.grid[2];
  if (tasks.workers == 0 || workers != tasks.workers + (timed(d) ? 1 : 0)) {
    findings.add("workers", std::to_string(tasks.workers) + " in a grid of " +
                                std::to_string(workers) + " threadgroups");
  }
  for (uint32_t task = 0; task < tasks.records.size(); ++task) {
    if (tasks.records[task].signals <= d.threads) continue;
    findings.add("signals", named(tasks, task) + " has " +
                                std::to_string(tasks.records[task].signals) +
                                " of them, a worker " + std::to_string(d.threads) + " threads");
  }
}

}  // namespace

std::vector<std::string> verify_tasks(const Program& program) {
  std::vector<std::string> errors;
  for (size_t i = 0; i < program.dispatches.size(); ++i) {
    const Dispatch& d = program.dispatches[i];
    if (!d.tasks) continue;
    Findings findings;
    check_launch(d, findings);
    const TaskOrder order(*d.tasks, findings);
    if (order.defined()) Memory(program, i, order, findings).run();
    for (const std::string& line : findings.take()) {
      errors.push_back("dispatch " + std::to_string(i) + " (" + d.stage + "): " + line);
    }
  }
  return errors;
}

}  // namespace tmf::plan
