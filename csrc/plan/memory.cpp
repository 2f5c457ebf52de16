#include "memory.h"

#include "middle.h"

namespace tmf::plan {
namespace {

std::string gigabytes(uint64_t bytes) {
  const uint64_t hundredths = ceil_div(bytes, 10'000'000);
  const std::string rest = std::to_string(hundredths % 100);
  return std::to_string(hundredths / 100) + (rest.size() < 2 ? ".0" : ".") + rest + " GB";
}

}  // namespace

uint64_t tensor_bytes(const LayerCall& c) {
  const uint64_t io = size_of(c.io);
  const uint64_t weights = packed_elements(c.in_features(), c.hidden) +
                           packed_elements(c.hidden, c.value_dim()) + c.conv_dim() * c.conv_taps +
                           c.head_v_dim + (c.input_norm ? c.hidden : 0);
  const uint64_t gates = c.v_heads * ((c.float_a ? 4 : io) + (c.float_dt ? 4 : io));
  const uint64_t states = conv_span(c, c.conv_out, c.batch) + state_span(c, c.state_out, c.batch) +
                          (c.conv_in && !c.in_place ? conv_span(c, *c.conv_in, c.batch) +
                                                          state_span(c, *c.state_in, c.batch)
                                                    : 0);
  return (weights + 2 * c.rows() * c.hidden) * io + gates + states +
         (c.mask ? mask_span(c, c.batch) : 0);
}

uint64_t scratch_bytes(const Program& program) {
  uint64_t bytes = 0;
  for (const Buffer& b : program.buffers) bytes += b.role == Role::scratch ? b.bytes : 0;
  return bytes;
}

void check_memory(const DeviceSpec& device, const char* what, uint64_t bytes) {
  if (device.working_set_bytes == 0 || bytes <= device.working_set_bytes) return;
  throw Refusal(std::string(what) + ": memory of the call", gigabytes(bytes),
                "at most " + gigabytes(device.working_set_bytes) +
                    ", what the device recommends to work with");
}

}  // namespace tmf::plan
