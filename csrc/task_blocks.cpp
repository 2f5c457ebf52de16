#include "task_blocks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <string_view>
#include <tuple>

#include "errors.h"
#include "plan/order.h"
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

// Device, its stream, workers, tables. On the CPU all calls share a block, see lock_blocks.
using Key = std::tuple<c10::DeviceType, c10::DeviceIndex, c10::StreamId, uint32_t, std::string>;
std::map<Key, std::unique_ptr<TaskBlocks>> known;
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
  const Tensor control = at::zeros({kControlWords}, words);
  control[kControlDone].fill_(1);  // nothing is under way
  return std::make_unique<TaskBlocks>(TaskBlocks{std::move(program), tables.to(device),
                                                 at::zeros({counters}, words), control});
}

// By their tables.
TaskBlocks& find_or_make(const std::shared_ptr<const plan::TaskProgram>& program,
                         c10::Device device, c10::StreamId stream,
                         const std::function<void()>& before_first) {
  std::string bytes = bytes_of(*program);
  const std::lock_guard guard(known_lock);
  std::unique_ptr<TaskBlocks>& blocks =
      known[{device.type(), device.index(), stream, program->workers, bytes}];
  if (blocks == nullptr) {
    before_first();
    blocks = make(program, bytes, device);
    in_order.push_back(blocks.get());
  }
  return *blocks;
}

// A control block of the caller's may say anything.
std::string task_name(const plan::TaskProgram& program, uint32_t task) {
  return task < program.records.size() ? plan::named(program, task) : text("task ", task);
}

std::vector<Tensor> control_and_counters(std::string_view device) {
  std::vector<Tensor> tensors;
  for (TaskBlocks* b : all_task_blocks(c10::Device(std::string(device)).type())) {
    tensors.push_back(b->control);
    tensors.push_back(b->counters);
  }
  return tensors;
}

// The checked point of devices whose calls return before they are done.
void check_launches(std::string_view device) {
  std::string first;
  for (TaskBlocks* b : all_task_blocks(c10::Device(std::string(device)).type())) {
    std::string found = failure(*b, b->control);
    if (found.empty() && b->counters[kCounterBroken].item<int32_t>() != 0) {
      found = "one with slots; its control block says why";
    }
    if (found.empty()) continue;
    if (first.empty()) first = found;
    clear(*b, b->control);
  }
  TORCH_CHECK(first.empty(), "mps_fusion: a persistent launch failed: ", first);
}

}  // namespace

std::unique_lock<std::mutex> lock_blocks(c10::DeviceType device) {
  return device == c10::kCPU ? std::unique_lock(cpu_lock) : std::unique_lock<std::mutex>();
}

TaskBlocks& task_blocks(const std::shared_ptr<const plan::TaskProgram>& program, c10::Device device,
                        const std::function<void()>& before_first) {
  static thread_local Recents recents;
  const c10::StreamId stream =
      device.is_cpu() ? 0 : c10::impl::VirtualGuardImpl(device.type()).getStream(device).id();
  for (const Recent& r : recents.entries) {
    if (r.program == program && r.device == device && r.stream == stream) return *r.blocks;
  }
  TaskBlocks& blocks = find_or_make(program, device, stream, before_first);
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

std::string failure(const TaskBlocks& blocks, const Tensor& control) {
  const Tensor words = control.to(at::kCPU);
  const auto word = [&](ControlWord w) {
    return static_cast<uint32_t>(words.const_data_ptr<int32_t>()[w]);
  };
  const auto task = [&] { return task_name(*blocks.program, word(kControlTask)); };
  switch (word(kControlStatus)) {
    case kStatusWell:
      if (word(kControlDone) != 0) return "";
      return "a worker did not finish";
    case kStatusExpired:
      return text(task(), " waited too long for counter ", word(kControlCounter), ": expected ",
                  word(kControlExpected), ", seen ", word(kControlSeen));
    case kStatusCancelled:
      return text("cancelled at ", task());
    default:
      return "an earlier launch failed and was not cleared";
  }
}

void clear(const TaskBlocks& blocks, const Tensor& control) {
  Tensor counters = blocks.counters, words = control;
  counters.zero_();
  const Tensor slot = words[kControlSlot].clone();
  words.zero_();
  words[kControlSlot].copy_(slot);
  words[kControlDone].fill_(1);
}

TORCH_LIBRARY_IMPL(mps_fusion, CompositeExplicitAutograd, m) {
  m.impl("_task_blocks", control_and_counters);
  m.impl("_check_launches", check_launches);
}

}  // namespace tmf
