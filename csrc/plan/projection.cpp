#include "projection.h"

namespace tmf::plan {

void add_projection(Builder& builder, const DeviceSpec& device, const Geometry& geometry, Io io,
                    const Projection& p) {
  const uint64_t es = size_of(io), tiles = p.only_conv_state ? 0 : padded_rows(p.n) / kTile;
  const bool norm = p.norm.buffer >= 0, residual = p.residual.buffer >= 0;
  const bool conv = p.conv_out.buffer >= 0, given = conv && p.conv_in.buffer >= 0;
  const bool masked = conv && p.mask.buffer >= 0;
  const std::string& tile = tile_for(geometry, p.k);
  const uint32_t nt = tile_number(tile, 't');
  if (tiles % nt != 0) {
    throw Refusal("geometry: tile", tile,
                  "one tile a threadgroup: " + std::to_string(tiles) + " tiles is odd");
  }
  const uint32_t groups = tiles == 0 ? 0 : projection_groups(geometry, device, tiles, nt, norm);
  const uint64_t state_groups = conv ? ceil_div(p.conv_threads, 256) : 0;
  const uint64_t passes = tiles == 0 ? 1 : ceil_div(p.rows, kPassRows);
  const auto u32 = [](uint64_t v) { return static_cast<uint32_t>(v); };
  const bool on = !p.only_conv_state;
  const ProjectionArgs args{.k = u32(p.k),
                            .n = u32(p.n),
                            .tiles = u32(tiles),
                            .rows = u32(p.rows),
                            .x_stride = u32(p.k),
                            .y_stride = u32(p.y_stride),
                            .r_stride = residual ? u32(p.n) : 0,
                            .groups = groups,
                            .eps = p.eps,
                            .reserved0 = 0,
                            .reserved1 = 0,
                            .reserved2 = 0};
  builder
      .kernel(p.stage, "projection",
              std::string("tmf_projection_") + name_of(io) + "_f32_" + tile + "__group")
      .constants({{kNorm, norm},
                  {kResidual, residual},
                  {kWritesConvState, conv},
                  {kMask, masked},
                  {kConvGiven, given}})
      .read(p.w, packed_elements(p.n, p.k) * es * passes, on)
      .read(p.x, p.rows * p.k * es, on)
      .read(p.norm, p.k * es, norm)
      .read(p.residual, p.rows * p.n * es, residual)
      .write(p.y, p.rows * p.n * es, on)
      .arguments(args)
      .read(p.gdn_y, p.conv_fresh, conv)
      .read(p.conv_in, p.conv_kept, given)
      .write(p.conv_out, p.conv_written, conv)
      .read(p.mask, p.mask_read, masked)
      .arguments(p.gdn)
      .launch({groups + state_groups, passes}, 256, kSegments * 8 * (16 * nt + 4 + 1) * 4,
              projection_cycles(p.k, groups == 0 ? 0 : ceil_div(tiles, uint64_t{groups} * nt), nt,
                                norm, p.rows));
}

}  // namespace tmf::plan
