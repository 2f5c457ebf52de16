// What runs programs on a device type. Each device registers its own when its code is loaded: the
// MPS one on macOS, in the extension itself.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "encoder.h"
#include "plan/devices.h"

#define TMF_EXPORT __attribute__((visibility("default")))

namespace tmf {

class Runner {
 public:
  virtual ~Runner() = default;

  // Why programs cannot run on the current device of this machine; empty if they can.
  virtual std::string why_not() const { return ""; }

  // The memory of a tensor of this device from its first element on, whatever its storage offset.
  virtual BufferView view(const at::Tensor& tensor) const = 0;

  // Makes the program's kernels ready, so that `run` throws for none of them: a call of several
  // programs asks for all before it runs the first.
  virtual void make_ready(const plan::Program& program) = 0;

  // Encodes the program on the current stream of the current device, which is that of `buffers`. A
  // kernel that does not compile, or an argument that the device cannot take, throws before
  // anything is encoded. The caller keeps the tensors behind `buffers` until this returns;
  // PyTorch's allocator reuses memory in stream order.
  virtual void run(const plan::Program& program, const std::vector<BufferView>& buffers) = 0;

  // Whether work on the current stream is only recorded now, to run later or never: a graph that is
  // captured, a recorder of calls.
  virtual bool records() const { return false; }

  // The device by name, as plan/devices.h knows it ("Apple M1 Max" is "M1 Max"); empty: unknown.
  virtual std::string device_name() const { return ""; }

  // What the device recommends to have in memory at most; 0: unknown.
  virtual uint64_t working_set_bytes() const { return 0; }

  // The Metal language level that its compiler takes: 310 is Metal 3.1.
  virtual uint32_t language() const { return 320; }

  // Makes the kernel ready. Empty if that worked, else the device's message.
  virtual std::string prepare(const plan::Kernel& kernel) = 0;
};

TMF_EXPORT void register_runner(c10::DeviceType type, Runner& runner);

// Null where this build, or what has been loaded, cannot run programs on such a device.
TMF_EXPORT Runner* runner_for(c10::DeviceType type);

// Why programs cannot run on such a device here and now; empty if they can.
std::string why_no_shaders(c10::DeviceType type);

// What the planner is told of the device that a type's runner has: the only place that asks.
plan::DeviceSpec current_device(c10::DeviceType type);

}  // namespace tmf
