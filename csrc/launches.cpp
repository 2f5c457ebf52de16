#include "launches.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "auto_choice.h"
#include "errors.h"
#include "plan/order.h"
#include "runner.h"

namespace tmf {
namespace {

using at::Tensor;

// Waits for the device.
uint32_t word_of(const Tensor& block, int64_t index) {
  const int32_t word =
      block.is_cpu() ? block.const_data_ptr<int32_t>()[index] : block[index].item<int32_t>();
  return static_cast<uint32_t>(word);
}

// A control block of the caller's may say anything.
std::string task_name(const plan::TaskProgram& program, uint32_t task) {
  return task < program.records.size() ? plan::named(program, task) : text("task ", task);
}

// Empty if the control block tells of no failure; else what happened.
std::string failure(const TaskBlocks& blocks, const Tensor& control) {
  const Tensor words = control.to(at::kCPU);
  const auto word = [&](ControlWord w) {
    return static_cast<uint32_t>(words.const_data_ptr<int32_t>()[w]);
  };
  const auto task = [&] { return task_name(*blocks.program, word(kControlTask)); };
  switch (word(kControlStatus)) {
    case kStatusWell:
      return (word(kControlSlot) & kSlotUnderWay) != 0 ? "a worker did not finish" : "";
    case kStatusExpired:
      return text(task(), " waited too long for counter ", word(kControlCounter), ": expected ",
                  word(kControlExpected), ", seen ", word(kControlSeen));
    case kStatusCancelled:
      return text("cancelled at ", task());
    default:
      return "an earlier launch failed and was not cleared";
  }
}

// Empty if so many launches have ended well; graphs that were replayed end more.
std::string unfinished(const TaskBlocks& blocks, uint32_t expected) {
  const auto late = static_cast<int32_t>(expected - word_of(blocks.counters, kCounterEpoch));
  if (late <= 0) return "";
  return text("no worker of ", late == 1 ? "it" : text(late, " launches"), " ran to the end");
}

// Makes the next launch start afresh; the committed slot stays.
void clear(TaskBlocks& blocks, const Tensor& control) {
  Tensor counters = blocks.counters, words = control;
  counters.zero_();
  blocks.expected = 0;
  const Tensor slot = words[kControlSlot].bitwise_and(kSlotCommitted);
  words.zero_();
  words[kControlSlot].copy_(slot);
}

// ------------------------------------------------------------------ control blocks of callers

// One that has been used since the last checked point: on which stream, with which programs.
struct Use {
  Tensor control;
  c10::StreamId stream;
  std::vector<TaskBlocks*> blocks;
};
using Place = std::pair<const c10::StorageImpl*, int64_t>;  // and its offset in elements
std::map<Place, Use> uses;
std::mutex uses_lock;

// Whether the caller has let go of it.
bool only_ours(const Tensor& t) { return t.use_count() == 1 && t.storage().use_count() == 1; }

void note_use(const char* op, TaskBlocks& blocks, const Tensor& control) {
  const c10::StreamId stream = current_stream_id(control.device());
  const std::lock_guard guard(uses_lock);
  std::erase_if(uses, [](const auto& use) { return only_ours(use.second.control); });
  const Place place{control.storage().unsafeGetStorageImpl(), control.storage_offset()};
  Use& use = uses.try_emplace(place, Use{control, stream, {}}).first->second;
  if (use.stream != stream) {
    refuse(op, "control", text("a block whose launches are on another stream (", use.stream, ")"),
           "one stream, until check_launches has waited for them");
  }
  if (std::find(use.blocks.begin(), use.blocks.end(), &blocks) == use.blocks.end()) {
    use.blocks.push_back(&blocks);
  }
}

// What a failed launch with a caller's control block was; the block and its programs start afresh.
std::string take_failure(const Use& use) {
  std::string found;
  for (TaskBlocks* b : use.blocks) {
    const bool broken = word_of(b->counters, kCounterBroken) != 0;
    if (broken || b == use.blocks.back()) found = failure(*b, use.control);
    if (broken) break;
  }
  if (found.empty()) return found;
  for (TaskBlocks* b : use.blocks) clear(*b, use.control);
  return found;
}

// -------------------------------------------------------------------------- the checked point

std::string check_blocks(TaskBlocks& blocks, uint32_t expected) {
  std::string found = failure(blocks, blocks.control);
  if (found.empty() && word_of(blocks.counters, kCounterBroken) != 0) {
    found = "one with slots; its control block says why";
  }
  if (found.empty() && !blocks.control.is_cpu()) {  // where a call looks itself
    found = unfinished(blocks, expected);
    blocks.expected += word_of(blocks.counters, kCounterEpoch) - expected;
  }
  if (!found.empty()) clear(blocks, blocks.control);
  return found;
}

// Of devices whose calls return before they are done.
void check_launches(std::string_view device) {
  const c10::DeviceType type = c10::Device(std::string(device)).type();
  const std::vector<TaskBlocks*> all = all_task_blocks(type);
  std::vector<uint32_t> expected;
  for (TaskBlocks* b : all) expected.push_back(b->expected);
  for (TaskBlocks* b : all) {  // whatever their streams
    const c10::Device d = b->control.device();
    if (!d.is_cpu()) c10::impl::VirtualGuardImpl(type).synchronizeDevice(d.index());
  }
  std::string first;
  const auto keep = [&](std::string found) {
    if (first.empty()) first = std::move(found);
  };
  {
    const std::lock_guard guard(uses_lock);
    for (auto use = uses.begin(); use != uses.end();) {
      if (use->second.control.device().type() != type) {
        ++use;
        continue;
      }
      keep(take_failure(use->second));
      use = uses.erase(use);
    }
  }
  for (size_t i = 0; i < all.size(); ++i) keep(check_blocks(*all[i], expected[i]));
  if (first.empty()) return;
  avoid_persistent();
  TORCH_CHECK(false, "mps_fusion: a persistent launch failed: ", first);
}

std::vector<Tensor> control_and_counters(std::string_view device) {
  std::vector<Tensor> tensors;
  for (TaskBlocks* b : all_task_blocks(c10::Device(std::string(device)).type())) {
    tensors.push_back(b->control);
    tensors.push_back(b->counters);
  }
  return tensors;
}

// ------------------------------------------------------------------------ instrumented launches

std::map<c10::DeviceType, Tensor> last_times;
std::mutex times_lock;

// What the last instrumented launch on a device type noted, TaskTime and then TaskWait by words;
// empty if there was none.
Tensor task_times(std::string_view device) {
  const std::lock_guard guard(times_lock);
  const auto found = last_times.find(c10::Device(std::string(device)).type());
  return found == last_times.end() ? at::empty({0}, at::kInt) : found->second;
}

}  // namespace

void run_launch(const char* op, const char* variant, TaskBlocks& blocks, const Tensor& control,
                const std::function<void()>& execute) {
  const bool runs = !runner_for(control.device().type())->records();
  if (!control.is_cpu()) {
    if (!control.is_same(blocks.control)) note_use(op, blocks, control);
    execute();
    if (runs) ++blocks.expected;
    return;
  }
  blocks.expected = word_of(blocks.counters, kCounterEpoch) + (runs ? 1 : 0);
  try {
    execute();
  } catch (...) {
    clear(blocks, control);
    throw;
  }
  std::string found = failure(blocks, control);
  if (found.empty()) found = unfinished(blocks, blocks.expected);
  if (found.empty()) return;
  avoid_persistent();
  clear(blocks, control);
  TORCH_CHECK(false, "mps_fusion::", op, ": variant '", variant, "' failed, ", found,
              "; the states are as they were");
}

Tensor new_task_times(const TaskBlocks& blocks) {
  constexpr size_t kSimds = 8;  // of a worker
  const size_t words = (sizeof(TaskTime) + kSimds * sizeof(TaskWait)) / sizeof(int32_t);
  const auto n = static_cast<int64_t>(words * blocks.program->records.size());
  const Tensor times = at::zeros({n}, blocks.control.options());
  const std::lock_guard guard(times_lock);
  last_times.insert_or_assign(times.device().type(), times);
  return times;
}

TORCH_LIBRARY_IMPL(mps_fusion, CompositeExplicitAutograd, m) {
  m.impl("_task_blocks", control_and_counters);
  m.impl("_check_launches", check_launches);
  m.impl("_task_times", task_times);
}

}  // namespace tmf
