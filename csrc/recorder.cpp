#include "recorder.h"

#include "plan/listing.h"

namespace tmf {
namespace {

std::string constants_of(const plan::Kernel& kernel) {
  std::string out;
  out.reserve(8 * kernel.constants.size());
  for (const auto& [id, value] : kernel.constants) {
    if (!out.empty()) out += ',';
    out += std::to_string(id);
    out += '=';
    out += std::to_string(value);
  }
  return out;
}

}  // namespace

std::string pipeline_key(const plan::Kernel& kernel) {
  return kernel.name + "|" + constants_of(kernel);
}

std::vector<BufferView> Recorder::views() const {
  std::vector<BufferView> views;
  for (size_t i = 0; i < program_.buffers.size(); ++i) {
    views.push_back({reinterpret_cast<void*>(i), 0, program_.buffers[i].bytes});
  }
  return views;
}

void Recorder::set_kernel(const plan::Kernel& kernel) {
  out_ << "kernel " << kernel.name << ' ' << constants_of(kernel) << '\n';
}

void Recorder::set_buffer(uint32_t index, const BufferView& view) {
  out_ << "buffer " << index << ' '
       << program_.buffers.at(reinterpret_cast<size_t>(view.object)).name << ' ' << view.offset
       << '\n';
}

void Recorder::set_bytes(uint32_t index, const void* data, uint32_t size) {
  out_ << "bytes " << index << ' ' << plan::to_hex(static_cast<const std::byte*>(data), size)
       << '\n';
}

void Recorder::dispatch(const std::array<uint32_t, 3>& grid, uint32_t threads) {
  out_ << "dispatch " << grid[0] << ' ' << grid[1] << ' ' << grid[2] << ' ' << threads << '\n';
}

void Recorder::barrier() { out_ << "barrier\n"; }

std::string record(const plan::Program& program) {
  std::string out;
  plan::Program one{program.buffers, {}};
  for (const plan::Dispatch& d : program.dispatches) {
    if (d.product) {
      out += "product " + d.stage + "\n";
      continue;
    }
    one.dispatches = {d};
    Recorder single(program);
    encode(one, single.views(), single);
    out += single.text();
  }
  return out;
}

}  // namespace tmf
