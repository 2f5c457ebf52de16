// What the planner makes and every encoder runs: a list of dispatches over named buffers. Plain
// data; no torch, no device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace tmf::plan {

enum class Access : uint8_t { none, read, write, read_write };

// A buffer of a program. Two buffers with the same `storage` share memory (a state updated in
// place); `bytes` is the size of a scratch buffer, which the caller allocates, and 0 for a tensor.
struct Buffer {
  std::string name;
  uint32_t storage;
  uint64_t bytes;
};

// A kernel: family (one shader library), host name, function constants by id.
struct Kernel {
  std::string family;
  std::string name;
  std::map<uint32_t, uint32_t> constants;

  bool operator<(const Kernel& other) const {
    return std::tie(family, name, constants) < std::tie(other.family, other.name, other.constants);
  }
};

// One bound argument: a buffer of the program, or inline bytes (then `access` is none).
struct Argument {
  uint32_t index;
  int32_t buffer = -1;
  Access access = Access::none;
  std::vector<std::byte> bytes;
};

struct Dispatch {
  std::string stage;
  Kernel kernel;
  std::vector<Argument> arguments;
  std::array<uint32_t, 3> grid;  // threadgroups
  uint32_t threads;              // of a threadgroup
  bool barrier_before;           // waits for all dispatches before it
};

struct Program {
  std::vector<Buffer> buffers;
  std::vector<Dispatch> dispatches;
};

}  // namespace tmf::plan
