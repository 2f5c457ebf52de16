// What the planner makes and every encoder runs: a list of dispatches over named buffers. Plain
// data; no torch, no device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace tmf::plan {

struct TaskProgram;

enum class Access : uint8_t { none, read, write, read_write };

inline bool reads(Access a) { return a == Access::read || a == Access::read_write; }
inline bool writes(Access a) { return a == Access::write || a == Access::read_write; }

// What a buffer holds, for the sums of `explain`. A scratch buffer is allocated by the caller;
// `control` holds what the workers of a persistent dispatch go by; `unused` stands for arguments of
// paths that are off.
enum class Role : uint8_t { weight, state, activation, scratch, control, unused };

// A buffer of a program. Two buffers with the same `storage` share memory (a state updated in
// place). `bytes` is the size of a scratch buffer, and of a tensor what the program may touch of
// it. `given`: it holds something before the program runs.
struct Buffer {
  std::string name;
  uint32_t storage;
  uint64_t bytes;
  Role role = Role::scratch;
  bool given = false;
};

// A kernel: family (one shader library), host name, function constants by id. All constants that
// the kernel uses are listed, the false ones too.
struct Kernel {
  std::string family;
  std::string name;
  std::map<uint32_t, uint32_t> constants;

  bool operator<(const Kernel& other) const {
    return std::tie(family, name, constants) < std::tie(other.family, other.name, other.constants);
  }
};

// One bound argument: a buffer of the program, or inline bytes (then `access` is none).
// The dispatch stays inside [offset, offset + extent) of the buffer; `read` and `written` count
// each byte of it once, except weights: once a pass.
struct Argument {
  uint32_t index;
  int32_t buffer = -1;
  Access access = Access::none;
  std::vector<std::byte> bytes{};
  uint64_t offset = 0;
  uint64_t extent = 0;
  uint64_t read = 0;
  uint64_t written = 0;
};

// A kernel launch; or, if `product`, aten's matrix product of the arguments 1 (X) and 0 (W, packed,
// unpacked into 4) plus 2 (residual, if it is read) into 3: then there is no kernel and no grid.
struct Dispatch {
  std::string stage;
  Kernel kernel;
  std::vector<Argument> arguments;
  std::array<uint32_t, 3> grid{};  // threadgroups
  uint32_t threads = 0;            // of a threadgroup
  uint32_t threadgroup_bytes = 0;  // memory of a threadgroup, static
  bool barrier_before = false;     // waits for all dispatches before it
  bool product = false;
  double estimate_us = 0;                      // see cost.h
  std::shared_ptr<const TaskProgram> tasks{};  // of a persistent dispatch, see tasks.h
};

// The first dispatch has no barrier: an encoder orders a program behind all earlier work.
struct Program {
  std::vector<Buffer> buffers;
  std::vector<Dispatch> dispatches;
  bool overlap =
      false;  // a barrier may let the next dispatch start early, where a device can do so
};

}  // namespace tmf::plan
