// What the workers of a persistent dispatch go by, in device memory (shaders/include/tasks.h): the
// program's tables, its counters and a control block.
#pragma once

#include <ATen/core/Tensor.h>

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
};

// Held while CPU tensors are worked on: a block serves one launch at a time. On devices the stream
// orders the launches.
std::unique_lock<std::mutex> lock_blocks(c10::DeviceType device);

// The blocks of a program on the current stream of a device; made on first use and kept, because a
// captured graph may replay launches that use them. If `before_first` throws, none are made.
// Programs with equal tables share blocks; those of a thread's recent programs are found by the
// program's address, so that a decoding loop compares no tables.
TaskBlocks& task_blocks(const std::shared_ptr<const plan::TaskProgram>& program, c10::Device device,
                        const std::function<void()>& before_first);

// All blocks of a device type, in the order in which they were made.
std::vector<TaskBlocks*> all_task_blocks(c10::DeviceType device);

// Waits for the device. Empty if the last launch with these blocks ended well; else what happened.
std::string failure(const TaskBlocks& blocks, const at::Tensor& control);

// Makes the next launch start afresh; the committed slot stays.
void clear(const TaskBlocks& blocks, const at::Tensor& control);

}  // namespace tmf
