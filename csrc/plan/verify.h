// Proves the programs of persistent dispatches, from their records and touches alone:
//   the counters order the tasks without a cycle, each wait is met and by lower tickets only, so
//   that any number of workers comes to the end (order.h);
//   each byte that the dispatch makes has one writer, and all that it declares is written;
//   each read is behind the publication of every byte that it reads;
//   touches stay in what is bound, and in the buffer;
//   where buffers share memory, all tasks that touch one are over before a task writes another, and
//   what is needed after the dispatch is written last.
// Arguments without touches are taken as used by every task at any time. Touches are taken at their
// word: tests/shaders/test_task_touches.py compares them with what the kernel does.
// Tests verify the planner's programs; a call verifies its own before the first launch of its table
// of tasks.
#pragma once

#include <string>
#include <vector>

#include "program.h"

namespace tmf::plan {

// What is wrong, one line each; empty if nothing is. Programs without tasks are sound here.
std::vector<std::string> verify_tasks(const Program& program);

}  // namespace tmf::plan
