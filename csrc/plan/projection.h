// The projection as a dispatch: in a layer, with its norm, residual and conv state; or alone.
#pragma once

#include "builder.h"
#include "shaders/include/abi.h"

namespace tmf::plan {

struct Projection {
  std::string stage;
  uint64_t rows, k, n;
  uint64_t y_stride;
  View w, x, y;
  View norm{}, residual{};  // with a buffer if used
  View gdn_y{}, conv_in{}, conv_out{},
      mask{};                 // conv_out: with a buffer if the conv state is written
  uint64_t conv_threads = 0;  // batch * conv_dim
  uint64_t conv_fresh = 0, conv_kept = 0, conv_written = 0, mask_read = 0;  // bytes
  GdnArgs gdn{};
  float eps = 0;
  bool only_conv_state = false;  // no tiles at all
};

void add_projection(Builder& builder, const DeviceSpec& device, const Geometry& geometry, Io io,
                    const Projection& projection);

}  // namespace tmf::plan
