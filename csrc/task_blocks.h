// What the workers of a persistent dispatch go by, in device memory (shaders/include/tasks.h): the
// program's tables, its counters and a control block.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "plan/tasks.h"

namespace tmf {

struct TaskBlocks {
  std::shared_ptr<const plan::TaskProgram> program;
  at::Tensor tasks, counters, control;  // uint8, int32, int32
  // What the epoch will be when all launches so far have ended well, graphs that are replayed
  // apart.
  std::atomic<uint32_t> expected{0};
};

// Of the current stream of a device; 0 on the CPU.
c10::StreamId current_stream_id(c10::Device device);

// Held while CPU tensors are worked on: a block serves one launch at a time. On devices the stream
// orders the launches.
std::unique_lock<std::mutex> lock_blocks(c10::DeviceType device);

// The blocks of a program on the current stream of a device; made on first use and kept, because a
// captured graph may replay launches that use them. If `before_first` throws, none are made.
// `commits`: in place or on slots; where a dispatch follows that copies, it must not find the word
// of a launch that made new states. Programs with equal tables share blocks; those of a thread's
// recent programs are found by the program's address, so that a decoding loop compares no tables.
TaskBlocks& task_blocks(const std::shared_ptr<const plan::TaskProgram>& program, bool commits,
                        c10::Device device, const std::function<void()>& before_first);

// All blocks of a device type, in the order in which they were made.
std::vector<TaskBlocks*> all_task_blocks(c10::DeviceType device);

}  // namespace tmf
