#include "host/recording.h"

#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <string>
#include <unordered_map>

#include "recorder.h"

namespace tmf::host {
namespace {

std::atomic<bool> on = false;

class Recording final : public Encoder {
 public:
  void clear() {
    calls_.clear();
    inline_.clear();
  }
  size_t dispatches() const { return dispatches_; }

  void set_kernel(const plan::Kernel& kernel) override {
    const auto [found, made] = pipelines_.try_emplace(pipeline_key(kernel), pipelines_.size());
    calls_.push_back({Call::kernel, 0, nullptr, found->second});
  }
  void set_buffer(uint32_t index, const BufferView& view) override {
    calls_.push_back({Call::buffer, index, view.object, view.offset});
  }
  void set_bytes(uint32_t index, const void* data, uint32_t size) override {
    calls_.push_back({Call::bytes, index, nullptr, inline_.size()});
    const auto* bytes = static_cast<const char*>(data);
    inline_.insert(inline_.end(), bytes, bytes + size);
  }
  void dispatch(const std::array<uint32_t, 3>& grid, uint32_t threads) override {
    calls_.push_back({Call::dispatch, threads, nullptr, grid[0]});
    ++dispatches_;
  }
  void barrier() override { calls_.push_back({Call::barrier, 0, nullptr, 0}); }

 private:
  struct Call {
    enum Kind : uint8_t { kernel, buffer, bytes, dispatch, barrier } kind;
    uint32_t index;
    const void* object;
    uint64_t value;
  };

  std::unordered_map<std::string, uint64_t> pipelines_;
  std::vector<Call> calls_;
  std::vector<char> inline_;
  size_t dispatches_ = 0;
};

Recording& mine() {
  static thread_local Recording recording;
  return recording;
}

// The dispatches that this thread has recorded so far.
int64_t set_recording(bool value) {
  on = value;
  return static_cast<int64_t>(mine().dispatches());
}

}  // namespace

bool recording() { return on.load(std::memory_order_relaxed); }

void record_calls(const plan::Program& program, const std::vector<BufferView>& buffers) {
  mine().clear();
  encode(program, buffers, mine());
}

TORCH_LIBRARY_IMPL(mps_fusion, CompositeExplicitAutograd, m) {
  m.impl("_record_host_programs", set_recording);
}

}  // namespace tmf::host
