// What each task of a persistent dispatch touches of the buffers that the dispatch writes, from its
// record and the contract in shaders/include/tasks.h.
#include <algorithm>
#include <cstring>

#include "persistent.h"

namespace tmf::plan {
namespace {

// Arguments of the persistent kernel.
constexpr uint32_t kConvOut = 7, kStateOut = 12, kY = 14, kG = 15, kO = 16, kOutput = 17,
                   kInArgs = 22;

class Touches {
 public:
  Touches(const LayerCall& call, const Dispatch& d) : c_(call), d_(d), es_(size_of(call.io)) {
    nt_ = tile_number(d.kernel.name.substr(d.kernel.name.rfind("nt")), 't');
    std::memcpy(&gdn_, d.arguments.at(kInArgs + 2).bytes.data(), sizeof gdn_);
  }

  std::vector<Touch> run() {
    const std::vector<TaskRecord>& records = d_.tasks->records;
    for (task_ = 0; task_ < records.size(); ++task_) {
      const TaskRecord& r = records[task_];
      if (r.stage == kTaskInProj) in_proj(r);
      if (r.stage == kTaskHead) head(r);
      if (r.stage == kTaskConvState) conv_state(r);
      if (r.stage == kTaskOutProj) out_proj(r);
      if (r.stage == kTaskGatedNorm) gated_norm(r);
    }
    return std::move(touches_);
  }

 private:
  void touch(uint32_t argument, bool write, uint64_t offset, uint64_t rows, uint64_t pitch,
             uint64_t bytes, int32_t wait = -1) {
    if (rows == 0 || bytes == 0) return;
    const Argument& a = d_.arguments.at(argument);
    touches_.push_back({task_, a.buffer, write, wait, a.offset + offset, rows, pitch, bytes});
  }
  // Columns [first, first + count) of rows [row, row + rows) of Y.
  void y(bool write, uint64_t row, uint64_t rows, uint64_t first, uint64_t count) {
    const uint64_t pitch = y_stride(c_) * es_;
    touch(kY, write, row * pitch + first * es_, rows, pitch, count * es_);
  }
  uint64_t pass_rows(uint64_t pass) const {
    return std::min(kPassRows, c_.rows() - pass * kPassRows);
  }

  void in_proj(const TaskRecord& r) {
    const uint64_t first = r.tile * kTile;
    y(true, r.part * kPassRows, pass_rows(r.part), first,
      std::min(nt_ * kTile, c_.in_features() - first));
  }

  // Columns [first, first + count) of a value head in O or G, all tokens of a sequence.
  void head_columns(uint32_t argument, bool write, uint64_t row, uint64_t h, uint64_t first,
                    uint64_t count) {
    const uint64_t values = c_.value_dim();
    touch(argument, write, (row * values + h * c_.head_v_dim + first) * es_, c_.tokens,
          values * es_, count * es_);
  }

  void head(const TaskRecord& r) {
    const uint64_t parts = c_.head_v_dim / kHeadColumns, h = r.tile / parts;
    const uint64_t first = r.tile % parts * kHeadColumns, row = r.part * c_.tokens;
    const uint64_t keys = c_.key_dim(), values = c_.value_dim(), k = c_.head_k_dim;
    const uint64_t v = c_.head_v_dim, gates = 2 * (keys + values);
    const uint64_t hk = c_.tiled_heads ? h % c_.k_heads : h / (c_.v_heads / c_.k_heads);
    y(false, row, c_.tokens, hk * k, k);
    y(false, row, c_.tokens, keys + hk * k, k);
    y(false, row, c_.tokens, 2 * keys + h * v + first, kHeadColumns);
    y(false, row, c_.tokens, gates + h, 1);
    y(false, row, c_.tokens, gates + c_.v_heads + h, 1);
    head_columns(kO, true, row, h, first, kHeadColumns);
    const uint64_t state =
        4 * (r.part * uint64_t(gdn_.state_out_batch) + h * uint64_t(gdn_.state_out_head));
    if (c_.state_out.keys_adjacent) {
      touch(kStateOut, true, state + 4 * k * first, 1, 0, 4 * k * kHeadColumns);
    } else {
      touch(kStateOut, true, state + 4 * first, k, 4 * v, 4 * kHeadColumns);
    }
  }

  void gated_norm(const TaskRecord& r) {
    const uint64_t row = r.part * c_.tokens, keys = c_.key_dim(), v = c_.head_v_dim;
    y(false, row, c_.tokens, 2 * keys + c_.value_dim() + r.tile * v, v);
    head_columns(kO, false, row, r.tile, 0, v);
    head_columns(kG, true, row, r.tile, 0, v);
  }

  void conv_state(const TaskRecord& r) {
    const uint64_t first = r.tile * kTaskChannels;
    const uint64_t channels = std::min(kTaskChannels, c_.conv_dim() - first);
    const uint64_t channel = gdn_.conv_out_channel, time = gdn_.conv_out_time;
    const uint64_t offset = r.part * uint64_t(gdn_.conv_out_batch) + first * channel;
    y(false, r.part * c_.tokens, c_.tokens, first, channels);
    for (uint64_t t = 0; t < c_.conv_width; ++t) {
      touch(kConvOut, true, (offset + t * time) * es_, channels, channel * es_, es_);
    }
  }

  void out_proj(const TaskRecord& r) {
    const uint64_t row = r.part * kPassRows, rows = pass_rows(r.part), values = c_.value_dim();
    for (uint64_t s = 0; s < kSegments; ++s) {
      const uint64_t first = 32 * segment_begin(values / 32, s);
      const uint64_t count = 32 * segment_begin(values / 32, s + 1) - first;
      touch(kG, false, (row * values + first) * es_, rows, values * es_, count * es_,
            static_cast<int32_t>(s));
    }
    const uint64_t first = r.tile * kTile;
    touch(kOutput, true, (row * c_.hidden + first) * es_, rows, c_.hidden * es_,
          std::min(nt_ * kTile, c_.hidden - first) * es_);
  }

  const LayerCall& c_;
  const Dispatch& d_;
  uint64_t es_, nt_;
  GdnArgs gdn_{};
  uint32_t task_ = 0;
  std::vector<Touch> touches_;
};

}  // namespace

void add_touches(Program& program, const LayerCall& call) {
  for (Dispatch& d : program.dispatches) {
    if (!d.tasks) continue;
    auto tasks = std::make_shared<TaskProgram>(*d.tasks);
    tasks->touches = Touches(call, d).run();
    d.tasks = std::move(tasks);
  }
}

}  // namespace tmf::plan
