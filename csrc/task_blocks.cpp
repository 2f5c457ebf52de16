#include "task_blocks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <tuple>

#include "plan_cache.h"

namespace tmf {
namespace {

using at::Tensor;

// Tables of a program as the kernel reads them.
std::string bytes_of(const plan::TaskProgram& p) {
  std::string bytes(p.record_bytes() + p.edge_bytes(), '\0');
  std::memcpy(bytes.data(), p.records.data(), p.record_bytes());
  std::memcpy(bytes.data() + p.record_bytes(), p.edges.data(), p.edge_bytes());
  return bytes;
}

// Device, its stream, whether launches commit, workers, tables. On the CPU all calls share a
// block, see lock_blocks.
using Key =
    std::tuple<c10::DeviceType, c10::DeviceIndex, c10::StreamId, bool, uint32_t, std::string>;
// Never destroyed: a device's driver may be gone by the time the process ends.
auto& known = *new std::map<Key, std::unique_ptr<TaskBlocks>>;
std::vector<TaskBlocks*> in_order;
std::mutex known_lock, cpu_lock;

// Blocks of a program that a thread has used: the program is held, so that no other one can have
// its address.
struct Recent {
  std::shared_ptr<const plan::TaskProgram> program;
  c10::Device device = c10::kCPU;
  c10::StreamId stream = 0;
  TaskBlocks* blocks = nullptr;
};
struct Recents {
  std::array<Recent, kPlans> entries;
  size_t oldest = 0;
};

std::unique_ptr<TaskBlocks> make(std::shared_ptr<const plan::TaskProgram> program,
                                 const std::string& bytes, c10::Device device) {
  const Tensor tables = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::memcpy(tables.mutable_data_ptr(), bytes.data(), bytes.size());
  const auto words = at::TensorOptions().dtype(at::kInt).device(device);
  const int64_t counters = kCounterFirst + int64_t{kCounterStride} * program->counters;
  auto blocks = std::make_unique<TaskBlocks>();
  blocks->program = std::move(program);
  blocks->tasks = tables.to(device);
  blocks->counters = at::zeros({counters}, words);
  blocks->control = at::zeros({kControlWords}, words);
  return blocks;
}

// By their tables.
TaskBlocks& find_or_make(const std::shared_ptr<const plan::TaskProgram>& program, bool commits,
                         c10::Device device, c10::StreamId stream,
                         const std::function<void()>& before_first) {
  std::string bytes = bytes_of(*program);
  const std::lock_guard guard(known_lock);
  std::unique_ptr<TaskBlocks>& blocks =
      known[{device.type(), device.index(), stream, commits, program->workers, bytes}];
  if (blocks == nullptr) {
    before_first();
    blocks = make(program, bytes, device);
    in_order.push_back(blocks.get());
  }
  return *blocks;
}

}  // namespace

std::unique_lock<std::mutex> lock_blocks(c10::DeviceType device) {
  return device == c10::kCPU ? std::unique_lock(cpu_lock) : std::unique_lock<std::mutex>();
}

c10::StreamId current_stream_id(c10::Device device) {
  if (device.is_cpu()) return 0;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).id();
}

TaskBlocks& task_blocks(const std::shared_ptr<const plan::TaskProgram>& program, bool commits,
                        c10::Device device, const std::function<void()>& before_first) {
  static thread_local Recents recents;
  const c10::StreamId stream = current_stream_id(device);
  for (const Recent& r : recents.entries) {
    if (r.program == program && r.device == device && r.stream == stream) return *r.blocks;
  }
  TaskBlocks& blocks = find_or_make(program, commits, device, stream, before_first);
  recents.entries[recents.oldest] = {program, device, stream, &blocks};
  recents.oldest = (recents.oldest + 1) % kPlans;
  return blocks;
}

std::vector<TaskBlocks*> all_task_blocks(c10::DeviceType device) {
  const std::lock_guard guard(known_lock);
  std::vector<TaskBlocks*> found;
  for (TaskBlocks* b : in_order) {
    if (b->control.device().type() == device) found.push_back(b);
  }
  return found;
}

}  // namespace tmf
