// Proves a program: nothing depends on what no barrier orders, nothing is read before it is
// written, nothing reaches past its buffer.
#pragma once

#include <string>
#include <vector>

#include "program.h"

namespace tmf::plan {

// What is wrong, one line each; empty if nothing is. Two accesses of one storage conflict if one of
// them writes and their ranges overlap; a barrier must lie between them. A buffer that holds
// nothing before the program must be written before it is read, and must not be read any more once
// its storage was written under another name. Inside a dispatch, only pairs that the kernel allows
// may share memory with a write; dispatches with tasks are verify_tasks' to judge. Where dispatches
// may overlap, none asks ahead for what an earlier one wrote.
std::vector<std::string> check_dependences(const Program& program);

// What each kernel touches, worked out from the argument structs and the kernel's name as
// shaders/README.md has it, against the declared access, extent and the buffer's size.
std::vector<std::string> check_bounds(const Program& program);

// Each stage between the projections takes the tokens of its sequences in order, all of them.
std::vector<std::string> check_blocks(const Program& program);

// All of these, and verify_tasks (verify.h).
std::vector<std::string> check(const Program& program);

}  // namespace tmf::plan
