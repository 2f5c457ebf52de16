// Programs on CPU tensors: every kernel runs in metal_host, one launch after the other.
#include "encoder.h"
#include "host/provider.h"
#include "host/recording.h"
#include "runner.h"

namespace tmf::host {
namespace {

class HostEncoder final : public Encoder {
 public:
  explicit HostEncoder(const Session& session) : session_(session) {}

  void set_kernel(const plan::Kernel& kernel) override {
    kernel_ = &kernel;
    found_ = &find_kernel(kernel, session_.checked);
    buffers_.assign(found_->names.size(), MhBuffer{});
    inline_.assign(found_->names.size(), {});
    for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i].name = found_->names[i].c_str();
  }

  void set_buffer(uint32_t index, const BufferView& view) override {
    MhBuffer& buffer = buffers_.at(index);
    buffer.data = static_cast<char*>(view.object) + view.offset;
    buffer.bytes = view.bytes;
  }

  void set_bytes(uint32_t index, const void* data, uint32_t size) override {
    const auto* bytes = static_cast<const char*>(data);
    inline_.at(index).assign(bytes, bytes + size);
    MhBuffer& buffer = buffers_.at(index);
    buffer.data = inline_[index].data();
    buffer.bytes = size;
  }

  void dispatch(const std::array<uint32_t, 3>& grid, uint32_t threads) override {
    MhLaunch launch{};
    launch.entry = found_->entry;
    launch.code = reinterpret_cast<const void*>(found_->entry);
    for (int i = 0; i < 3; ++i) launch.grid[i] = grid[i];
    launch.group[0] = threads;
    launch.group[1] = launch.group[2] = 1;
    launch.buffer_count = static_cast<uint32_t>(buffers_.size());
    launch.buffers = buffers_.data();
    launch.options = session_.options_of(*kernel_);
    // Workers that wait for each other: this machine must not hold up one of several threads.
    if (kernel_->family == "persistent") launch.options.threads = 1;
    MhCounts counts{};
    std::vector<MhBufferCounts> per_buffer(buffers_.size());
    std::string text(65536, '\0');
    const uint32_t faults = found_->launch(&launch, &counts, per_buffer.data(), text.data(),
                                           static_cast<uint32_t>(text.size()));
    if (faults == 0 && !session_.record) return;
    report(*kernel_, session_.checked, counts, per_buffer, faults == 0 ? "" : text.c_str());
  }

  // Launches are done before the next begins.
  void barrier() override {}

 private:
  const Session& session_;
  const plan::Kernel* kernel_ = nullptr;
  const HostKernel* found_ = nullptr;
  std::vector<MhBuffer> buffers_;
  std::vector<std::vector<char>> inline_;
};

class HostRunner final : public Runner {
 public:
  BufferView view(const at::Tensor& tensor) const override {
    const auto offset = static_cast<uint64_t>(tensor.storage_offset()) * tensor.element_size();
    return {const_cast<void*>(tensor.storage().data()), offset, tensor.storage().nbytes() - offset};
  }

  void make_ready(const plan::Program& program) override {
    if (!recording()) find_all(program, begin_session());
  }

  void run(const plan::Program& program, const std::vector<BufferView>& buffers) override {
    if (recording()) return record_calls(program, buffers);
    const Session session = begin_session();
    find_all(program, session);
    HostEncoder encoder(session);
    encode(program, buffers, encoder);
  }

  bool records() const override { return recording(); }

  std::string device_name() const override { return "host"; }

  std::string prepare(const plan::Kernel& kernel) override {
    try {
      find_kernel(kernel, false);
      return "";
    } catch (const std::exception& error) {
      return error.what();
    }
  }

 private:
  static void find_all(const plan::Program& program, const Session& session) {
    for (const plan::Dispatch& d : program.dispatches) {
      if (!d.product) find_kernel(d.kernel, session.checked);
    }
  }
};

const bool registered = [] {
  register_runner(c10::kCPU, *new HostRunner);
  return true;
}();

}  // namespace
}  // namespace tmf::host
