// Collects the buffers and dispatches of a program; knows how arguments are written, not which.
#pragma once

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "constants.h"
#include "cost.h"
#include "program.h"
#include "tasks.h"

namespace tmf::plan {

// A part of a buffer as one dispatch binds it.
struct View {
  int32_t buffer = -1;
  uint64_t offset = 0;  // bytes
  uint64_t extent = 0;  // bytes
};

class Builder {
 public:
  explicit Builder(const DeviceSpec& device) : device_(device) {
    if (device.msl < 310) {
      throw Refusal("device: msl", std::to_string(device.msl), "310 (macOS 14) or later");
    }
    // Bound where a path is off: any valid buffer will do.
    unused_ = buffer("unused", 16, Role::unused, true);
  }

  int32_t buffer(std::string name, uint64_t bytes, Role role, bool given = false,
                 int32_t storage_of = -1) {
    const auto index = static_cast<int32_t>(program_.buffers.size());
    const uint32_t storage = storage_of >= 0 ? program_.buffers[storage_of].storage : index;
    program_.buffers.push_back({std::move(name), storage, bytes, role, given});
    return index;
  }
  int32_t scratch(std::string name, uint64_t bytes) {
    return buffer(std::move(name), bytes, Role::scratch);
  }

  // Starts a dispatch; the calls below add to it.
  Builder& kernel(std::string stage, std::string family, std::string name) {
    Dispatch d;
    d.stage = std::move(stage);
    d.kernel = {std::move(family), std::move(name), {}};
    d.barrier_before = !program_.dispatches.empty();
    program_.dispatches.push_back(std::move(d));
    return *this;
  }
  // aten's product of x (rows, k) and a packed weight (n, k), which is unpacked into `rows`.
  void product(std::string stage, const View& w, const View& rows, const View& x,
               const View& residual, const View& y, uint64_t multiply_adds) {
    kernel(std::move(stage), "aten", "linear");
    read(w, w.extent);
    read(x, x.extent);
    read(residual, residual.extent, residual.buffer >= 0);
    write(y, y.extent);
    argument({rows.buffer, rows.offset, w.extent}, Access::write, w.extent, w.extent);
    Dispatch& d = last();
    d.product = true;
    d.estimate_us = estimate_us(device_, bytes_of(d), device_.cores,
                                product_cycles(multiply_adds) / device_.cores);
  }
  Builder& tasks(TaskProgram tasks) {
    last().tasks = std::make_shared<const TaskProgram>(std::move(tasks));
    return *this;
  }
  Builder& constants(std::initializer_list<std::pair<FunctionConstant, bool>> values) {
    for (const auto& [id, value] : values) last().kernel.constants[id] = value ? 1 : 0;
    return *this;
  }
  // What a persistent dispatch makes and reads itself, and what its workers coordinate with.
  Builder& made_inside(const View& view, uint64_t written, uint64_t read) {
    return argument(view, Access::write, read, written);
  }
  Builder& coordination(const View& view) { return argument(view, Access::read_write, 0, 0); }
  // An argument that is read; `on` false: the path is off.
  Builder& read(const View& view, uint64_t bytes, bool on = true) {
    return argument(view, on ? Access::read : Access::none, bytes, 0);
  }
  Builder& write(const View& view, uint64_t bytes, bool on = true) {
    return argument(view, on ? Access::write : Access::none, 0, bytes);
  }
  template <typename Struct>
  Builder& arguments(const Struct& value) {
    Argument a{.index = next()};
    a.bytes.resize(sizeof value);
    std::memcpy(a.bytes.data(), &value, sizeof value);
    last().arguments.push_back(std::move(a));
    return *this;
  }
  // Ends the dispatch. `memory`: bytes of threadgroup memory, as shaders/README.md has them.
  void launch(std::initializer_list<uint64_t> grid, uint64_t threads, uint64_t memory,
              double cycles) {
    Dispatch& d = last();
    if (memory > device_.threadgroup_memory) {
      throw Refusal("device: threadgroup memory", std::to_string(device_.threadgroup_memory),
                    "at least " + std::to_string(memory) + " bytes (" + d.kernel.name + ")");
    }
    d.threadgroup_bytes = static_cast<uint32_t>(memory);
    constexpr std::array<uint64_t, 3> limits{0x7fffffff, 65535, 65535};
    d.grid = {1, 1, 1};
    uint64_t groups = 1;
    size_t i = 0;
    for (uint64_t n : grid) {
      if (n < 1 || n > limits[i]) {
        throw Refusal(d.stage + ": dimension " + std::to_string(i) + " of the grid",
                      std::to_string(n), "1 to " + std::to_string(limits[i]));
      }
      d.grid[i++] = static_cast<uint32_t>(n);
      groups *= n;
    }
    d.threads = static_cast<uint32_t>(threads);
    d.estimate_us = estimate_us(device_, bytes_of(d), groups, cycles);
  }

  Builder& overlap(bool on) {
    program_.overlap = on;
    return *this;
  }
  Program take() { return std::move(program_); }

 private:
  Dispatch& last() { return program_.dispatches.back(); }
  uint32_t next() { return static_cast<uint32_t>(last().arguments.size()); }

  Builder& argument(const View& view, Access access, uint64_t read, uint64_t written) {
    Argument a{.index = next(), .buffer = view.buffer, .access = access};
    if (access == Access::none) {
      a.buffer = unused_;
    } else {
      a.offset = view.offset;
      a.extent = view.extent;
      a.read = read;
      a.written = written;
    }
    last().arguments.push_back(std::move(a));
    return *this;
  }

  const DeviceSpec& device_;
  Program program_;
  int32_t unused_;
};

}  // namespace tmf::plan
