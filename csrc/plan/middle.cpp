#include "middle.h"

#include <cmath>

namespace tmf::plan {

uint64_t conv_span(const LayerCall& c, const ConvLayout& l, uint64_t batch) {
  return (1 + (batch - 1) * l.batch + (c.conv_dim() - 1) * l.channel +
          (c.conv_width - 1) * l.time) *
         size_of(c.io);
}

uint64_t state_span(const LayerCall& c, const StateLayout& l, uint64_t batch) {
  return ((batch - 1) * l.batch + (c.v_heads - 1) * l.head + c.head_k_dim * c.head_v_dim) * 4;
}

uint64_t mask_span(const LayerCall& c, uint64_t batch) {
  return 1 + (batch - 1) * c.mask->batch + (c.tokens - 1) * c.mask->token;
}

GdnArgs gdn_args(const LayerCall& c, uint64_t batch, uint64_t first, uint64_t count) {
  const auto u32 = [](uint64_t v) { return static_cast<uint32_t>(v); };
  const auto i32 = [](int64_t v) { return static_cast<int32_t>(v); };
  const MaskLayout mask = c.mask.value_or(MaskLayout{});
  const ConvLayout conv_in = c.conv_in.value_or(ConvLayout{});
  const StateLayout state_in = first > 0 ? c.state_out : c.state_in.value_or(StateLayout{});
  return {.batch = u32(batch),
          .tokens = u32(c.tokens),
          .first = u32(first),
          .count = u32(count),
          .k_heads = u32(c.k_heads),
          .v_heads = u32(c.v_heads),
          .conv_channels = u32(c.conv_dim()),
          .conv_taps = u32(c.conv_taps),
          .conv_width = u32(c.conv_width),
          .y_stride = u32(y_stride(c)),
          .mask_batch = i32(mask.batch),
          .mask_token = i32(mask.token),
          .conv_in_batch = i32(conv_in.batch),
          .conv_in_channel = i32(conv_in.channel),
          .conv_in_time = i32(conv_in.time),
          .conv_out_batch = i32(c.conv_out.batch),
          .conv_out_channel = i32(c.conv_out.channel),
          .conv_out_time = i32(c.conv_out.time),
          .state_in_batch = i32(state_in.batch),
          .state_in_head = i32(state_in.head),
          .state_out_batch = i32(c.state_out.batch),
          .state_out_head = i32(c.state_out.head),
          .eps = c.eps,
          .q_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_k_dim)))};
}

namespace {

class Middle {
 public:
  Middle(Builder& builder, const LayerCall& call, const Geometry& geometry, const Buffers& buffers)
      : builder_(builder), c_(call), geometry_(geometry), all_(buffers), es_(size_of(call.io)) {
    io_ = name_of(c_.io);
    dims_ = "dk" + std::to_string(c_.head_k_dim) + "dv" + std::to_string(c_.head_v_dim);
  }

  void make_stage_buffers() {
    const uint64_t rows = c_.rows();
    const auto scratch = [&](const char* name, uint64_t bytes) {
      return View{builder_.scratch(name, bytes), 0, bytes};
    };
    conv_ = scratch("C", rows * c_.conv_dim() * es_);
    q_ = scratch("Q", rows * c_.key_dim() * 4);
    k_ = scratch("K", rows * c_.key_dim() * 4);
    kq_ = scratch("KQ", rows * c_.k_heads * 4);
    gates_ = scratch("gates", rows * c_.v_heads * 8);
    o_ = scratch("O", rows * c_.value_dim() * es_);
  }

  // Sequences [batch_first, + batch), tokens [first, + count).
  void block(uint64_t batch_first, uint64_t batch, uint64_t first, uint64_t count) {
    batch_first_ = batch_first;
    batch_ = batch;
    first_ = first;
    count_ = count;
    n_ = batch * count;
    args_ = gdn_args(c_, batch, first, count);
    chained_ = first > 0;
    const bool given = chained_ || c_.state_in.has_value();
    const StateLayout& out = c_.state_out;
    const StateLayout in = chained_ ? out : c_.state_in.value_or(StateLayout{});
    state_given_ = given;
    keys_in_ = given && in.keys_adjacent;
    state_in_ = state_view(chained_ ? all_.state_out : all_.state_in, in);
    state_out_ = state_view(all_.state_out, out);
    if (c_.conv_in) {
      conv_in_ = part(all_.conv_in, c_.conv_in->batch * es_, conv_span(c_, *c_.conv_in, batch));
    }
    if (c_.mask) mask_ = part(all_.mask, c_.mask->batch, mask_span(c_, batch));
  }

  void cut(const std::vector<Stage>& stages) {
    if (stages.size() > 1) return core();
    if (stages.front() == Stage::conv) return conv();
    if (stages.front() == Stage::qk_gates) return qk_gates();
    if (stages.front() == Stage::rule) return rule();
    return gated_norm();
  }

  void core() {
    const uint64_t threads = 8 * c_.head_v_dim / tile_number(geometry_.core, 'r');
    builder_.kernel("core", "core", kernel("core", dims_ + geometry_.core, "group"))
        .constants({{kMask, masked()},
                    {kConvGiven, c_.conv_in.has_value()},
                    {kStateGiven, state_given_},
                    {kTiledHeads, c_.tiled_heads},
                    {kKeysAdjacent, keys_in_},
                    {kKeysAdjacentOut, c_.state_out.keys_adjacent},
                    {kFloatA, c_.float_a},
                    {kFloatDt, c_.float_dt}})
        .read(rows(all_.y, y_stride(c_) * es_), n_ * c_.in_features() * es_ + window())
        .read(all_.conv_weight, all_.conv_weight.extent)
        .read(conv_in_, kept(), c_.conv_in.has_value())
        .read(all_.a_log, all_.a_log.extent)
        .read(all_.dt_bias, all_.dt_bias.extent)
        .read(all_.norm_weight, all_.norm_weight.extent)
        .read(state_in_, state_bytes(), state_given_)
        .write(state_out_, state_bytes())
        .read(mask_, n_, masked())
        .write(rows(all_.g, c_.value_dim() * es_), n_ * c_.value_dim() * es_)
        .arguments(args_)
        .launch({c_.v_heads, batch_}, threads,
                64 * (c_.head_k_dim + c_.head_v_dim) + 4 * c_.head_v_dim + 128,
                core_cycles(c_, count_, c_.head_v_dim));
  }

 private:
  bool masked() const { return c_.mask.has_value(); }
  uint64_t state_bytes() const { return batch_ * c_.v_heads * c_.head_k_dim * c_.head_v_dim * 4; }
  // Inputs of the convolution before the block: of earlier blocks, and of the conv state.
  uint64_t window() const {
    return batch_ * std::min(first_, c_.conv_taps - 1) * c_.conv_dim() * es_;
  }
  uint64_t kept() const {
    const uint64_t taps = c_.conv_taps - 1;
    return batch_ * (taps - std::min(first_, taps)) * c_.conv_dim() * es_;
  }
  std::string kernel(const char* op, const std::string& tile, const char* scope) const {
    return std::string("tmf_") + op + "_" + io_ + "_f32_" + tile + "__" + scope;
  }
  // The block's sequences of a buffer with `pitch` bytes from sequence to sequence.
  View part(const View& whole, uint64_t pitch, uint64_t extent) const {
    return {whole.buffer, batch_first_ * pitch, extent};
  }
  View rows(const View& whole, uint64_t row_bytes) const {
    return part(whole, c_.tokens * row_bytes, batch_ * c_.tokens * row_bytes);
  }
  View state_view(const View& whole, const StateLayout& layout) const {
    return whole.buffer < 0 ? View{}
                            : part(whole, layout.batch * 4, state_span(c_, layout, batch_));
  }

  void conv() {
    builder_.kernel("conv", "conv", kernel("conv", "n256", "thread"))
        .constants({{kMask, masked()}, {kConvGiven, c_.conv_in.has_value()}})
        .read(rows(all_.y, y_stride(c_) * es_), n_ * c_.conv_dim() * es_ + window())
        .read(all_.conv_weight, all_.conv_weight.extent)
        .read(conv_in_, kept(), c_.conv_in.has_value())
        .read(mask_, n_, masked())
        .write(rows(conv_, c_.conv_dim() * es_), n_ * c_.conv_dim() * es_)
        .arguments(args_)
        .launch({ceil_div(count_, 8), ceil_div(c_.conv_dim(), 256), batch_}, 256, 0, conv_cycles());
  }

  void qk_gates() {
    const uint64_t keys = n_ * c_.key_dim();
    builder_.kernel("qk_gates", "qk_gates", kernel("qk_gates", dims_, "simd"))
        .constants({{kMask, masked()}, {kFloatA, c_.float_a}, {kFloatDt, c_.float_dt}})
        .read(rows(conv_, c_.conv_dim() * es_), 2 * keys * es_)
        .read(rows(all_.y, y_stride(c_) * es_), n_ * 2 * c_.v_heads * es_)
        .read(all_.a_log, all_.a_log.extent)
        .read(all_.dt_bias, all_.dt_bias.extent)
        .read(mask_, n_, masked())
        .write(rows(q_, c_.key_dim() * 4), keys * 4)
        .write(rows(k_, c_.key_dim() * 4), keys * 4)
        .write(rows(kq_, c_.k_heads * 4), n_ * c_.k_heads * 4)
        .write(rows(gates_, c_.v_heads * 8), n_ * c_.v_heads * 8)
        .arguments(args_)
        .launch({ceil_div(count_ * c_.k_heads, 8), batch_}, 256, 0, head_cycles(2 * c_.head_k_dim));
  }

  void rule() {
    const uint64_t columns = tile_number(geometry_.rule, 'r'), groups = 4;
    const uint64_t keys = n_ * c_.key_dim(), values = n_ * c_.value_dim();
    builder_.kernel("rule", "rule", kernel("rule", dims_ + geometry_.rule, "group"))
        .constants({{kMask, masked()},
                    {kStateGiven, state_given_},
                    {kTiledHeads, c_.tiled_heads},
                    {kKeysAdjacent, keys_in_},
                    {kKeysAdjacentOut, c_.state_out.keys_adjacent}})
        .read(rows(q_, c_.key_dim() * 4), keys * 4)
        .read(rows(k_, c_.key_dim() * 4), keys * 4)
        .read(rows(kq_, c_.k_heads * 4), n_ * c_.k_heads * 4)
        .read(rows(gates_, c_.v_heads * 8), n_ * c_.v_heads * 8)
        .read(rows(conv_, c_.conv_dim() * es_), values * es_)
        .read(state_in_, state_bytes(), state_given_)
        .write(state_out_, state_bytes())
        .read(mask_, n_, masked())
        .write(rows(o_, c_.value_dim() * es_), values * es_)
        .arguments(args_)
        .launch({c_.head_v_dim / (4 * columns * groups), c_.v_heads, batch_}, 32 * groups,
                64 * c_.head_k_dim + 512 * columns + 128, rule_cycles(c_, geometry_, count_));
  }

  void gated_norm() {
    const uint64_t values = n_ * c_.value_dim() * es_;
    builder_.kernel("gated_norm", "gated_norm", kernel("gated_norm", dims_, "simd"))
        .constants({{kMask, masked()}})
        .read(rows(o_, c_.value_dim() * es_), values)
        .read(rows(all_.y, y_stride(c_) * es_), values)
        .read(all_.norm_weight, all_.norm_weight.extent)
        .read(mask_, n_, masked())
        .write(rows(all_.g, c_.value_dim() * es_), values)
        .arguments(args_)
        .launch({ceil_div(count_ * c_.v_heads, 8), batch_}, 256, 0, head_cycles(c_.head_v_dim));
  }

  Builder& builder_;
  const LayerCall& c_;
  const Geometry& geometry_;
  const Buffers& all_;
  uint64_t es_;
  std::string io_, dims_;
  View conv_, q_, k_, kq_, gates_, o_;

  uint64_t batch_first_ = 0, batch_ = 0, first_ = 0, count_ = 0, n_ = 0;
  GdnArgs args_{};
  bool chained_ = false, state_given_ = false, keys_in_ = false;
  View state_in_, state_out_, conv_in_, mask_;
};

// The cuts between the projections: each stage alone, or all of them at once.
Cuts middle_cuts(const Cuts& cuts) {
  const std::vector<Stage> stages{Stage::conv, Stage::qk_gates, Stage::rule, Stage::gated_norm};
  Cuts between;
  std::vector<Stage> order;
  for (const std::vector<Stage>& cut : cuts) {
    if (std::find(stages.begin(), stages.end(), cut.front()) == stages.end()) continue;
    between.push_back(cut);
    order.insert(order.end(), cut.begin(), cut.end());
  }
  if (order != stages || (between.size() != 1 && between.size() != stages.size())) {
    throw Refusal("cuts", std::to_string(between.size()) + " dispatches between the projections",
                  "conv, qk_gates, rule and gated_norm in this order, each alone or all together");
  }
  return between;
}

}  // namespace

void add_middle(Builder& builder, const LayerCall& call, const DeviceSpec& device,
                const Geometry& geometry, const Cuts& cuts, const Buffers& buffers) {
  Middle middle(builder, call, geometry, buffers);
  const Cuts between = middle_cuts(cuts);
  const bool fused = between.size() == 1;
  if (!fused) middle.make_stage_buffers();
  const Block step = middle_block(call, device, geometry, fused);
  for (uint64_t b = 0; b < call.batch; b += step.batch) {
    for (uint64_t t = 0; t < call.tokens; t += step.tokens) {
      middle.block(b, std::min(step.batch, call.batch - b), t,
                   std::min(step.tokens, call.tokens - t));
      for (const std::vector<Stage>& cut : between) middle.cut(cut);
    }
  }
}

}  // namespace tmf::plan
