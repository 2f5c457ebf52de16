// The order that the counters of a task program make among its tasks.
// What is proved holds for every launch: a wait for all that one launch adds to a counter is met in
// launch e exactly when all signals of launch e have come, whatever e is and however many workers
// run; launches follow each other, each behind a dispatch boundary.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "findings.h"
#include "tasks.h"

namespace tmf::plan {

// "task 7 (head, tile 3, part 0)".
std::string named(const TaskProgram& program, uint32_t task);

class TaskOrder {
 public:
  // Adds to `findings`: edges and counters that do not exist, waits that their stage does not
  // take, counts that no launch or the wrong launch reaches, tickets that wait for later ones, and
  // tasks that wait for each other. `program` must outlive the order.
  TaskOrder(const TaskProgram& program, Findings& findings);

  // False if edges are missing or tasks wait for each other: then there is no order to ask for.
  bool defined() const { return defined_; }

  // Whether `task` is over, and what it wrote published, when `reader` has passed one of its waits
  // (-1: all of them).
  bool over(uint32_t task, uint32_t reader, int32_t wait) const;

 private:
  using Set = std::vector<uint64_t>;  // of tasks, a bit each
  using Waits = std::pair<uint32_t, uint32_t>;

  bool check_edges(Findings& findings) const;
  void check_waits(Findings& findings) const;
  void check_counts(Findings& findings) const;
  void check_tickets(Findings& findings) const;
  std::vector<uint32_t> in_some_order(Findings& findings) const;
  void report_cycle(const std::vector<bool>& done, Findings& findings) const;
  void close(const std::vector<uint32_t>& tasks);
  const Set* behind_waits(uint32_t task);
  bool orders(const TaskEdge& wait) const { return wait.count != 0 && wait.count == total(wait); }
  uint64_t total(const TaskEdge& edge) const { return totals_[edge.counter]; }
  const TaskEdge& wait(uint32_t task, uint32_t i) const {
    return program_.edges[program_.records[task].first_wait + i];
  }

  const TaskProgram& program_;
  bool defined_ = false;
  std::vector<uint64_t> totals_;                  // by counter: what one launch adds
  std::vector<std::vector<uint32_t>> signalers_;  // by counter: tasks that add something
  std::vector<Set> complete_;                     // by counter: tasks that are over at its total
  std::map<Waits, Set> sets_;                     // by the edges of a record's waits
  std::vector<const Set*> before_;                // by task: those that are over behind its waits
};

}  // namespace tmf::plan
