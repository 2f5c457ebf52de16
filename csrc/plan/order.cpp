#include "order.h"

#include <algorithm>
#include <array>

namespace tmf::plan {
namespace {

constexpr uint32_t kStages = 5;
constexpr std::array<const char*, kStages> kStageNames{"in_proj", "head", "conv_state", "out_proj",
                                                       "gated_norm"};

std::string text(uint64_t n) { return std::to_string(n); }
std::string counter(uint64_t c) { return "counter " + text(c); }

}  // namespace

std::string named(const TaskProgram& program, uint32_t task) {
  const TaskRecord& r = program.records[task];
  const std::string stage = r.stage < kStages ? kStageNames[r.stage] : "stage " + text(r.stage);
  return "task " + text(task) + " (" + stage + ", tile " + text(r.tile) + ", part " + text(r.part) +
         ")";
}

TaskOrder::TaskOrder(const TaskProgram& program, Findings& findings) : program_(program) {
  if (!check_edges(findings)) return;
  totals_.resize(program.counters);
  signalers_.resize(program.counters);
  for (uint32_t task = 0; task < program.records.size(); ++task) {
    const TaskRecord& r = program.records[task];
    for (uint32_t i = 0; i < r.signals; ++i) {
      const TaskEdge& e = program.edges[r.first_signal + i];
      totals_[e.counter] += e.count;
      if (e.count != 0) signalers_[e.counter].push_back(task);
    }
  }
  check_waits(findings);
  check_counts(findings);
  check_tickets(findings);
  const std::vector<uint32_t> tasks = in_some_order(findings);
  if (tasks.size() != program.records.size()) return;
  defined_ = true;
  close(tasks);
}

bool TaskOrder::check_edges(Findings& findings) const {
  Findings found;
  const uint64_t edges = program_.edges.size();
  if (program_.counters > edges) {
    found.add("counters", text(program_.counters) + " for " + text(edges) + " edges");
  }
  for (uint64_t i = 0; i < edges; ++i) {
    if (program_.edges[i].counter < program_.counters) continue;
    found.add("edge", text(i) + " names " + counter(program_.edges[i].counter) + " of " +
                          text(program_.counters));
  }
  for (uint32_t task = 0; task < program_.records.size(); ++task) {
    const TaskRecord& r = program_.records[task];
    if (uint64_t{r.first_wait} + r.waits > edges || uint64_t{r.first_signal} + r.signals > edges) {
      found.add("edges", named(program_, task) + " goes past the last of " + text(edges));
    }
  }
  const bool sound = found.empty();
  for (const std::string& line : found.take()) findings.add("table", line);
  return sound;
}

// The task bodies wait where tasks.h says, whatever the record lists.
void TaskOrder::check_waits(Findings& findings) const {
  for (uint32_t task = 0; task < program_.records.size(); ++task) {
    const TaskRecord& r = program_.records[task];
    if (r.stage >= kStages) findings.add("stage", named(program_, task) + " is of no stage");
    const bool none = r.stage == kTaskInProj, each = r.stage == kTaskOutProj;
    if ((none && r.waits != 0) || (each && r.waits != kSegments)) {
      findings.add("waits", named(program_, task) + " lists " + text(r.waits) +
                                " waits, its stage takes " + text(none ? 0 : kSegments));
    }
  }
}

// A wait for less is met by the signals of earlier launches, a wait for more by no launch. Seen and
// expected are compared by the sign of their difference.
void TaskOrder::check_counts(Findings& findings) const {
  for (uint32_t c = 0; c < program_.counters; ++c) {
    if (totals_[c] > 0x7fffffff) {
      findings.add("count", "a launch adds " + text(totals_[c]) + " to " + counter(c) +
                                ", at most 2147483647 can be told from nothing");
    }
  }
  for (uint32_t task = 0; task < program_.records.size(); ++task) {
    for (uint32_t i = 0; i < program_.records[task].waits; ++i) {
      const TaskEdge& e = wait(task, i);
      if (e.count == total(e)) continue;
      findings.add("count", named(program_, task) + " expects " + text(e.count) + " of " +
                                counter(e.counter) + ", to which a launch adds " + text(total(e)));
    }
  }
}

void TaskOrder::check_tickets(Findings& findings) const {
  for (uint32_t task = 0; task < program_.records.size(); ++task) {
    for (uint32_t i = 0; i < program_.records[task].waits; ++i) {
      const TaskEdge& e = wait(task, i);
      if (e.count == 0 || signalers_[e.counter].empty()) continue;
      const uint32_t last = signalers_[e.counter].back();
      if (last < task) continue;
      findings.add("ticket", named(program_, task) + " waits for " + counter(e.counter) +
                                 ", which " + named(program_, last) + " signals");
    }
  }
}

// Tasks in an order in which each stands behind those it waits for; not all if some wait for each
// other.
std::vector<uint32_t> TaskOrder::in_some_order(Findings& findings) const {
  const auto tasks = static_cast<uint32_t>(program_.records.size());
  std::vector<std::vector<uint32_t>> waiters(program_.counters);
  std::vector<uint32_t> open(tasks), missing(program_.counters), order;
  for (uint32_t c = 0; c < program_.counters; ++c) {
    missing[c] = static_cast<uint32_t>(signalers_[c].size());
  }
  for (uint32_t task = 0; task < tasks; ++task) {
    for (uint32_t i = 0; i < program_.records[task].waits; ++i) {
      const TaskEdge& e = wait(task, i);
      if (e.count == 0 || missing[e.counter] == 0) continue;
      waiters[e.counter].push_back(task);
      ++open[task];
    }
    if (open[task] == 0) order.push_back(task);
  }
  std::vector<bool> done(tasks);
  for (size_t next = 0; next < order.size(); ++next) {
    const TaskRecord& r = program_.records[order[next]];
    done[order[next]] = true;
    for (uint32_t i = 0; i < r.signals; ++i) {
      const TaskEdge& e = program_.edges[r.first_signal + i];
      if (e.count == 0 || --missing[e.counter] != 0) continue;
      for (uint32_t waiter : waiters[e.counter]) {
        if (--open[waiter] == 0) order.push_back(waiter);
      }
    }
  }
  if (order.size() != tasks) report_cycle(done, findings);
  return order;
}

void TaskOrder::report_cycle(const std::vector<bool>& done, Findings& findings) const {
  const auto first = std::find(done.begin(), done.end(), false);
  auto task = static_cast<uint32_t>(first - done.begin());
  // From a task to one that it waits for, until one comes again.
  std::vector<uint32_t> path, counters;
  auto again = path.end();
  while ((again = std::find(path.begin(), path.end(), task)) == path.end()) {
    path.push_back(task);
    const uint32_t from = task;
    for (uint32_t i = 0; i < program_.records[from].waits && task == from; ++i) {
      const TaskEdge& e = wait(from, i);
      if (e.count == 0) continue;
      for (uint32_t signaler : signalers_[e.counter]) {
        if (done[signaler]) continue;
        counters.push_back(e.counter);
        task = signaler;
        break;
      }
      if (counters.size() == path.size()) break;
    }
  }
  std::string line;
  for (auto at = again; at != path.end(); ++at) {
    line += named(program_, *at) + " waits for " + counter(counters[at - path.begin()]) + " of ";
  }
  findings.add("cycle", line + named(program_, task));
}

void TaskOrder::close(const std::vector<uint32_t>& tasks) {
  complete_.assign(program_.counters, Set((program_.records.size() + 63) / 64));
  before_.resize(tasks.size());
  for (uint32_t task : tasks) {
    before_[task] = behind_waits(task);
    const Set& set = *before_[task];
    const TaskRecord& r = program_.records[task];
    for (uint32_t i = 0; i < r.signals; ++i) {
      const TaskEdge& e = program_.edges[r.first_signal + i];
      if (e.count == 0) continue;
      Set& complete = complete_[e.counter];
      for (size_t word = 0; word < set.size(); ++word) complete[word] |= set[word];
      complete[task / 64] |= uint64_t{1} << (task % 64);
    }
  }
}

// Complete once all tasks that signal what `task` waits for were closed.
const TaskOrder::Set* TaskOrder::behind_waits(uint32_t task) {
  const TaskRecord& r = program_.records[task];
  const auto [at, fresh] = sets_.try_emplace({r.first_wait, r.waits});
  if (!fresh) return &at->second;
  Set& set = at->second;
  set.resize((program_.records.size() + 63) / 64);
  for (uint32_t i = 0; i < r.waits; ++i) {
    const TaskEdge& e = wait(task, i);
    if (!orders(e)) continue;
    for (size_t word = 0; word < set.size(); ++word) set[word] |= complete_[e.counter][word];
  }
  return &set;
}

bool TaskOrder::over(uint32_t task, uint32_t reader, int32_t wait_index) const {
  const auto in = [&](const Set& set) { return (set[task / 64] >> (task % 64) & 1) != 0; };
  if (wait_index < 0) return in(*before_[reader]);
  const TaskEdge& e = wait(reader, static_cast<uint32_t>(wait_index));
  return orders(e) && in(complete_[e.counter]);
}

}  // namespace tmf::plan
