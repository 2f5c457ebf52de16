// An encoder that writes down what it is told, one call a line, for tests and explain:
//   barrier | kernel NAME ID=VALUE,.. | buffer INDEX NAME OFFSET | bytes INDEX HEX |
//   dispatch GX GY GZ THREADS
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "encoder.h"

namespace tmf {

class Recorder final : public Encoder {
 public:
  explicit Recorder(const plan::Program& program) : program_(program) {}

  // Views that stand for the program's buffers.
  std::vector<BufferView> views() const;
  std::string text() const { return out_.str(); }

  void set_kernel(const plan::Kernel& kernel) override;
  void set_buffer(uint32_t index, const BufferView& view) override;
  void set_bytes(uint32_t index, const void* data, uint32_t size) override;
  void dispatch(const std::array<uint32_t, 3>& grid, uint32_t threads) override;
  void barrier() override;

 private:
  const plan::Program& program_;
  std::ostringstream out_;
};

// The calls that a program makes; products are lines `product STAGE`.
std::string record(const plan::Program& program);

// "name|200=1,300=0": what identifies a pipeline.
std::string pipeline_key(const plan::Kernel& kernel);

}  // namespace tmf
