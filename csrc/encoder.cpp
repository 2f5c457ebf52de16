#include "encoder.h"

namespace tmf {

void encode(const plan::Program& program, const std::vector<BufferView>& buffers,
            Encoder& encoder) {
  for (const plan::Dispatch& dispatch : program.dispatches) {
    if (dispatch.barrier_before && program.overlap) {
      encoder.overlapping_barrier();
    } else if (dispatch.barrier_before) {
      encoder.barrier();
    }
    encoder.set_kernel(dispatch.kernel);
    for (const plan::Argument& argument : dispatch.arguments) {
      if (argument.buffer < 0) {
        encoder.set_bytes(argument.index, argument.bytes.data(),
                          static_cast<uint32_t>(argument.bytes.size()));
        continue;
      }
      BufferView view = buffers.at(argument.buffer);
      view.offset += argument.offset;
      view.bytes -= argument.offset;
      encoder.set_buffer(argument.index, view);
    }
    encoder.dispatch(dispatch.grid, dispatch.threads);
  }
}

}  // namespace tmf
