// Persistent launches as a call sees them: run, judged by what their blocks say, cleared.
#pragma once

#include <functional>
#include <string>

#include "task_blocks.h"

namespace tmf {

// Runs `execute`, which encodes a launch with these blocks and this control block.
// On the CPU it is over then, and this throws if it failed; the next call starts afresh. On a
// device the checked point (`check_launches`) throws. A control block of the caller's belongs to
// the stream of its first launch since then: on another one it is refused.
void run_launch(const char* op, const char* variant, TaskBlocks& blocks, const at::Tensor& control,
                const std::function<void()>& execute);

// Memory for what an instrumented launch notes, zeros: the last one is what `_task_times` gives.
at::Tensor new_task_times(const TaskBlocks& blocks);

}  // namespace tmf
