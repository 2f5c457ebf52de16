#include "layer.h"

#include "memory.h"
#include "middle.h"
#include "persistent.h"
#include "projection.h"

namespace tmf::plan {
namespace {

void fits(const char* argument, uint64_t value, uint64_t limit) {
  if (value > limit) {
    throw Refusal(argument, std::to_string(value), "at most " + std::to_string(limit));
  }
}

// The kernels take sizes as 32-bit numbers, strides as signed ones, and compute offsets in 64.
void check_limits(const LayerCall& c) {
  constexpr uint64_t k31 = 0x7fffffff, k32 = 0xffffffff;
  fits("hidden: size", c.hidden, k31);
  fits("hidden: tokens", c.tokens, k31);
  fits("hidden: batch * tokens", c.rows(), k31);
  fits("num_v_heads", c.v_heads, 65535);
  fits("conv_weight: channels * K", c.conv_dim() * c.conv_taps, k31);
  fits("hidden: batch * convolution channels", c.batch * c.conv_dim(), k32);
  fits("hidden: batch * num_v_heads", c.batch * c.v_heads, k31);
  fits("in_proj: rows", c.in_features(), k31);
  fits("conv_state: width", c.conv_width, k31);
  const auto stride = [](const char* name, int64_t value) {
    fits(name, static_cast<uint64_t>(value), k31);
  };
  const ConvLayout conv_in = c.conv_in.value_or(ConvLayout{});
  for (int64_t s : {conv_in.batch, conv_in.channel, conv_in.time, c.conv_out.batch,
                    c.conv_out.channel, c.conv_out.time}) {
    stride("conv_state: stride", s);
  }
  const StateLayout state_in = c.state_in.value_or(StateLayout{});
  for (int64_t s : {state_in.batch, state_in.head, c.state_out.batch, c.state_out.head}) {
    stride("recurrent_state: stride", s);
  }
  const SlotLayout slots = c.slots.value_or(SlotLayout{});
  stride("conv_slots: stride", slots.conv);
  stride("recurrent_slots: stride", slots.state);
  const MaskLayout mask = c.mask.value_or(MaskLayout{});
  stride("mask: stride", mask.batch);
  stride("mask: stride", mask.token);
}

class LayerPlanner {
 public:
  LayerPlanner(const LayerCall& call, const DeviceSpec& device, const Geometry& geometry,
               const Cuts& cuts)
      : c_(call), device_(device), geometry_(geometry), cuts_(cuts), builder_(device) {
    builder_.overlap(geometry.overlap);
  }

  Program plan() {
    check_limits(c_);
    if (persistent(cuts_)) return plan_persistent();
    // Above the threshold the projections are aten's, and the norm has nothing to be joined to.
    const bool products = c_.rows() > device_.row_threshold;
    make_buffers();
    const bool own_norm = products || cuts_.front().size() == 1;
    x_ = buffers_.hidden;
    if (c_.input_norm && own_norm) add_row_norm();
    if (products) {
      const uint64_t bytes = std::max(in_proj_.extent, out_proj_.extent);
      weight_rows_ = {builder_.scratch("weight_rows", bytes), 0, bytes};
      builder_.product("in_proj", in_proj_, weight_rows_, x_, View{}, buffers_.y,
                       c_.rows() * c_.hidden * c_.in_features());
    } else {
      add_in_proj(c_.input_norm && !own_norm);
    }
    add_middle(builder_, c_, device_, geometry_, cuts_, buffers_);
    add_out_proj(products);
    return builder_.take();
  }

 private:
  Program plan_persistent() {
    fits("hidden: batch * tokens, for a persistent variant", c_.rows(), most_rows(device_));
    make_buffers();
    const bool own_norm = cuts_.front().size() == 1;
    x_ = buffers_.hidden;
    if (c_.input_norm && own_norm) add_row_norm();
    const View norm = c_.input_norm && !own_norm ? input_norm_ : View{};
    const bool in_proj = cuts_.back().size() > 5;
    if (!in_proj) add_in_proj(norm.buffer >= 0);
    constexpr uint64_t kControl = kControlWords * 4;
    const View control{builder_.buffer("control", kControl, Role::control, true), 0, kControl};
    Persistent p{.in_proj = in_proj,
                 .w_in = in_proj_,
                 .x = x_,
                 .norm = in_proj ? norm : View{},
                 .w_out = out_proj_,
                 .residual = c_.input_norm ? buffers_.hidden : View{},
                 .output = output_,
                 .buffers = buffers_,
                 .control = control};
    if (!c_.in_place) {
      add_persistent(builder_, c_, device_, geometry_, p);
      return builder_.take();
    }
    const LayerCall call = with_new_states(c_);
    p.buffers.conv_out = scratch("conv_new", conv_span(call, call.conv_out, c_.batch));
    p.buffers.state_out = scratch("state_new", state_span(call, call.state_out, c_.batch));
    add_persistent(builder_, call, device_, geometry_, p);
    add_commit(builder_, c_, control, p.buffers.conv_out, p.buffers.state_out, buffers_);
    return builder_.take();
  }

  View scratch(const char* name, uint64_t bytes) {
    return {builder_.scratch(name, bytes), 0, bytes};
  }

  void make_buffers() {
    const uint64_t es = size_of(c_.io), rows = c_.rows();
    const auto given = [&](const char* name, uint64_t bytes, Role role) {
      return View{builder_.buffer(name, bytes, role, true), 0, bytes};
    };
    Buffers& b = buffers_;
    b.hidden = given("hidden", rows * c_.hidden * es, Role::activation);
    in_proj_ = given("in_proj", packed_elements(c_.in_features(), c_.hidden) * es, Role::weight);
    out_proj_ = given("out_proj", packed_elements(c_.hidden, c_.value_dim()) * es, Role::weight);
    b.conv_weight = given("conv_weight", c_.conv_dim() * c_.conv_taps * es, Role::weight);
    b.a_log = given("A_log", c_.v_heads * (c_.float_a ? 4 : es), Role::weight);
    b.dt_bias = given("dt_bias", c_.v_heads * (c_.float_dt ? 4 : es), Role::weight);
    b.norm_weight = given("norm_weight", c_.head_v_dim * es, Role::weight);
    if (c_.input_norm) input_norm_ = given("input_norm_weight", c_.hidden * es, Role::weight);
    if (c_.mask) b.mask = given("mask", mask_span(c_, c_.batch), Role::activation);
    const SlotLayout slots = c_.slots.value_or(SlotLayout{});
    const uint64_t conv_slot = slots.conv * es, state_slot = slots.state * 4;
    if (c_.conv_in) {
      b.conv_in = given("conv_in", conv_slot + conv_span(c_, *c_.conv_in, c_.batch), Role::state);
      b.state_in =
          given("state_in", state_slot + state_span(c_, *c_.state_in, c_.batch), Role::state);
    }
    const bool shared = c_.in_place || c_.slots;
    const auto written = [&](const char* name, uint64_t bytes, Role role, const View& old) {
      return View{builder_.buffer(name, bytes, role, false, shared ? old.buffer : -1), 0, bytes};
    };
    b.conv_out = written("conv_out", conv_slot + conv_span(c_, c_.conv_out, c_.batch), Role::state,
                         b.conv_in);
    b.state_out = written("state_out", state_slot + state_span(c_, c_.state_out, c_.batch),
                          Role::state, b.state_in);
    const uint64_t output = rows * c_.hidden * es;
    output_ = {builder_.buffer("output", output, Role::activation), 0, output};
    b.y = scratch("Y", rows * y_stride(c_) * es);
    b.g = scratch("G", rows * c_.value_dim() * es);
  }

  void add_row_norm() {
    const uint64_t bytes = c_.rows() * c_.hidden * size_of(c_.io);
    const View normed{builder_.scratch("X", bytes), 0, bytes};
    ProjectionArgs args{};
    args.k = args.x_stride = args.y_stride = static_cast<uint32_t>(c_.hidden);
    args.rows = static_cast<uint32_t>(c_.rows());
    args.eps = c_.eps;
    builder_
        .kernel("input_norm", "rms_norm",
                std::string("tmf_rms_norm_") + name_of(c_.io) + "_f32_n256__group")
        .read(x_, bytes)
        .read(input_norm_, input_norm_.extent)
        .write(normed, bytes)
        .arguments(args)
        .launch({c_.rows()}, 256, 32, row_norm_cycles(c_.hidden));
    x_ = normed;
  }

  void add_in_proj(bool norm) {
    Projection p{.stage = norm ? "input_norm+in_proj" : "in_proj",
                 .rows = c_.rows(),
                 .k = c_.hidden,
                 .n = c_.in_features(),
                 .y_stride = y_stride(c_),
                 .w = in_proj_,
                 .x = x_,
                 .y = buffers_.y};
    if (norm) p.norm = input_norm_;
    p.eps = c_.eps;
    p.gdn = gdn_args(c_, c_.batch, 0, c_.tokens);
    add_projection(builder_, device_, geometry_, c_.io, p);
  }

  // The last dispatch also writes the conv state: everything before it reads the old one.
  void add_out_proj(bool products) {
    Projection p{.stage = products ? "conv_state" : "out_proj",
                 .rows = c_.rows(),
                 .k = c_.value_dim(),
                 .n = c_.hidden,
                 .y_stride = c_.hidden,
                 .w = out_proj_,
                 .x = buffers_.g,
                 .y = output_};
    const uint64_t entry = c_.batch * c_.conv_dim() * size_of(c_.io);
    const uint64_t fresh = std::min(c_.tokens, c_.conv_width);
    const View residual = c_.input_norm ? buffers_.hidden : View{};
    if (!products) p.residual = residual;
    p.gdn_y = buffers_.y;
    p.conv_in = buffers_.conv_in;
    p.conv_out = buffers_.conv_out;
    p.mask = buffers_.mask;
    p.conv_threads = c_.batch * c_.conv_dim();
    p.conv_fresh = entry * fresh;
    p.conv_kept = entry * (c_.conv_width - fresh);
    p.conv_written = entry * c_.conv_width;
    p.mask_read = c_.rows();
    p.gdn = gdn_args(c_, c_.batch, 0, c_.tokens);
    p.eps = c_.eps;
    p.only_conv_state = products;
    if (products) {
      builder_.product("out_proj", out_proj_, weight_rows_, buffers_.g, residual, output_,
                       c_.rows() * c_.value_dim() * c_.hidden);
    }
    add_projection(builder_, device_, geometry_, c_.io, p);
  }

  const LayerCall& c_;
  const DeviceSpec& device_;
  const Geometry& geometry_;
  const Cuts& cuts_;
  Builder builder_;
  Buffers buffers_;
  View in_proj_, out_proj_, weight_rows_, input_norm_, output_, x_;
};

}  // namespace

Program plan_layer(const LayerCall& call, const DeviceSpec& device, const Geometry& geometry,
                   const Cuts& cuts) {
  return LayerPlanner(call, device, geometry, cuts).plan();
}

std::vector<ChunkProgram> plan_chunks(const LayerCall& call, const DeviceSpec& device,
                                      const Geometry& geometry, const Cuts& cuts) {
  check_limits(call);
  std::vector<ChunkProgram> made;
  uint64_t scratch = 0;
  for (const Chunk& chunk : chunks_of(call.batch, call.tokens, device.chunk_rows)) {
    LayerCall part = call;
    part.batch = chunk.batch;
    part.tokens = chunk.tokens;
    if (chunk.first > 0) {
      part.conv_in = call.conv_out;
      part.state_in = call.state_out;
      part.in_place = true;
    }
    made.push_back({chunk, plan_layer(part, device, geometry, cuts)});
    scratch = std::max(scratch, scratch_bytes(made.back().program));
  }
  check_memory(device, "hidden", tensor_bytes(call) + scratch);
  return made;
}

Program plan_linear(const LinearCall& c, const DeviceSpec& device, const Geometry& geometry) {
  constexpr uint64_t k31 = 0x7fffffff;
  fits("x: rows", c.rows, k31);
  fits("x: features", c.k, k31);
  fits("out_features", c.n, k31);
  Builder builder(device);
  const uint64_t es = size_of(c.io);
  const auto view = [&](const char* name, uint64_t bytes, Role role, bool given) {
    return View{builder.buffer(name, bytes, role, given), 0, bytes};
  };
  const View x = view("x", c.rows * c.k * es, Role::activation, true);
  const View w = view("weight", packed_elements(c.n, c.k) * es, Role::weight, true);
  const View y = view("output", c.rows * c.n * es, Role::activation, false);
  if (c.rows > device.row_threshold) {
    const View rows{builder.scratch("weight_rows", w.extent), 0, w.extent};
    builder.product("linear", w, rows, x, View{}, y, c.rows * c.k * c.n);
  } else {
    const Projection p{.stage = "linear",
                       .rows = c.rows,
                       .k = c.k,
                       .n = c.n,
                       .y_stride = c.n,
                       .w = w,
                       .x = x,
                       .y = y};
    add_projection(builder, device, geometry, c.io, p);
  }
  Program program = builder.take();
  check_memory(device, "x", x.extent + w.extent + y.extent + scratch_bytes(program));
  return program;
}

}  // namespace tmf::plan
