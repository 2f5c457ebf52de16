#include "shader_layer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <c10/core/DeviceGuard.h>

#include <map>
#include <mutex>
#include <utility>

#include "errors.h"
#include "packed_weight.h"
#include "runner.h"
#include "task_blocks.h"

namespace tmf {
namespace {

using at::Tensor;
constexpr uint64_t kWord = 16;  // bytes that the kernels load at once

// A stride as the kernels take it; that of a dim of size one never matters.
int64_t stride_of(const Tensor& t, int64_t dim) {
  const int64_t stride = t.stride(dim);
  return t.size(dim) == 1 && stride > 0x7fffffff ? 0 : stride;
}

bool on_word(const Tensor& t) {
  // On MPS a storage is a buffer object, whose memory begins on a page.
  const auto offset = t.device().is_mps()
                          ? static_cast<uint64_t>(t.storage_offset()) * t.element_size()
                          : reinterpret_cast<uint64_t>(t.const_data_ptr());
  return t.numel() == 0 || offset % kWord == 0;
}

// Contiguous and on a word: the tensor itself if it is, else a copy.
Tensor plain(const Tensor& t) {
  if (!t.defined()) return t;
  const Tensor whole = t.contiguous();
  return on_word(whole) ? whole : whole.clone();
}

bool keys_adjacent(const Tensor& state) { return state.stride(2) == 1; }

// Heads contiguous in one of the two orders, everything on words.
bool usable_state(const Tensor& t) {
  const int64_t dk = t.size(2), dv = t.size(3);
  const bool keys = t.stride(2) == 1 && t.stride(3) == dk;
  const bool values = t.stride(3) == 1 && t.stride(2) == dv;
  const auto whole_words = [&](int64_t dim) { return t.size(dim) == 1 || t.stride(dim) % 4 == 0; };
  return (keys || values) && whole_words(0) && whole_words(1) && on_word(t);
}

bool usable_slots(const Tensor& t) {
  return usable_state(t.select(0, 0)) && usable_state(t.select(0, 1));
}

Tensor usable_copy(const Tensor& t) {
  return t.transpose(2, 3).clone(at::MemoryFormat::Contiguous).transpose(2, 3);
}

plan::ConvLayout conv_layout(const Tensor& t) {
  return {stride_of(t, 0), stride_of(t, 1), stride_of(t, 2)};
}

plan::StateLayout state_layout(const Tensor& t) {
  return {stride_of(t, 0), stride_of(t, 1), keys_adjacent(t)};
}

// Runs a program over tensors by buffer name; what has no tensor is scratch.
class Execution {
 public:
  Execution(const plan::Program& program, const std::map<std::string, Tensor>& named,
            c10::Device device, c10::ScalarType type, std::string_view lanes)
      : guard_(device),
        program_(program),
        runner_(*runner_for(device.type())),
        type_(type),
        lanes_(lanes) {
    const auto bytes = at::TensorOptions().dtype(at::kByte).device(device);
    for (const plan::Buffer& b : program.buffers) {
      const auto found = named.find(b.name);
      tensors_.push_back(found != named.end() ? found->second
                                              : at::empty({static_cast<int64_t>(b.bytes)}, bytes));
      views_.push_back(runner_.view(tensors_.back()));
      TORCH_INTERNAL_ASSERT(views_.back().bytes >= b.bytes, b.name, " is smaller than planned");
    }
  }

  void run(int64_t rows) {
    plan::Program part{program_.buffers, {}};
    for (const plan::Dispatch& d : program_.dispatches) {
      if (!d.product) {
        part.dispatches.push_back(d);
        continue;
      }
      flush(part);
      product(d, rows);
    }
    flush(part);
  }

 private:
  void flush(plan::Program& part) {
    if (!part.dispatches.empty()) runner_.run(part, views_);
    part.dispatches.clear();
  }

  Tensor matrix(const plan::Argument& a, int64_t rows) const {
    const Tensor& t = tensors_.at(a.buffer);
    return (t.scalar_type() == at::kByte ? t.view(type_) : t).view({rows, -1});
  }

  // aten's product on the weight unpacked into a scratch buffer.
  void product(const plan::Dispatch& d, int64_t rows) const {
    const Tensor x = matrix(d.arguments[1], rows);
    Tensor y = matrix(d.arguments[3], rows);
    const int64_t k = x.size(1);
    const Tensor& packed = tensors_.at(d.arguments[0].buffer);
    const Tensor weight = unpack(packed, lanes_, packed.numel() / k, k).narrow(0, 0, y.size(1));
    at::mm_out(y, x, weight.t());
    if (d.arguments[2].access != plan::Access::none) y.add_(matrix(d.arguments[2], rows));
  }

  c10::DeviceGuard guard_;
  const plan::Program& program_;
  Runner& runner_;
  c10::ScalarType type_;
  std::string_view lanes_;
  std::vector<Tensor> tensors_;
  std::vector<BufferView> views_;
};

void check_weight(const char* op, const std::string& name, const Tensor& weight) {
  if (on_word(weight)) return;
  refuse(op, name, "memory that does not begin on 16 bytes",
         "a packed weight on 16 bytes (nothing is copied inside a call)");
}

// What was planned for; a refusal of the planner becomes one of the op.
template <typename Plan>
plan::Program planned(const char* op, const Plan& make) {
  try {
    return make();
  } catch (const plan::Refusal& r) {
    refuse(op, r.argument, r.got, r.accepted);
  }
}

void empty_call(const StatePair& state) {
  if (state.out.is_same(state.in)) return;
  Tensor out = state.out;
  if (state.in.defined()) {
    out.copy_(state.in);
  } else {
    out.zero_();
  }
}

// Of the program's persistent dispatch; null if it has none.
const plan::TaskProgram* tasks_of(const plan::Program& program) {
  for (const plan::Dispatch& d : program.dispatches) {
    if (d.tasks) return d.tasks.get();
  }
  return nullptr;
}

// On the CPU a call is done when it returns, so that it raises itself; the next one starts afresh.
template <typename Execute>
void run_persistent(const char* op, Variant variant, const TaskBlocks& blocks,
                    const Tensor& control, const Execute& execute) {
  if (!control.is_cpu()) return execute();
  try {
    execute();
  } catch (...) {
    clear(blocks, control);
    throw;
  }
  const std::string found = failure(blocks, control);
  if (found.empty()) return;
  clear(blocks, control);
  TORCH_CHECK(false, "mps_fusion::", op, ": variant '", name_of(variant), "' failed, ", found,
              "; the states are as they were");
}

std::mutex geometry_lock;
std::string geometry_text;

}  // namespace

std::string override_geometry(std::string_view text) {
  plan::change({}, text);
  const std::lock_guard guard(geometry_lock);
  return std::exchange(geometry_text, std::string(text));
}

plan::Geometry current_geometry(const plan::DeviceSpec& device, plan::Io io) {
  const std::lock_guard guard(geometry_lock);
  return plan::change(plan::geometry_for(device, io), geometry_text);
}

plan::Io io_of(c10::ScalarType type) {
  return type == c10::kFloat ? plan::Io::f32 : type == c10::kHalf ? plan::Io::f16 : plan::Io::bf16;
}

plan::LayerCall layer_call(const LayerArgs& a, const StatePair& conv, const StatePair& recurrent) {
  const auto u64 = [](int64_t v) { return static_cast<uint64_t>(v); };
  plan::LayerCall c;
  c.batch = u64(a.hidden.size(0));
  c.tokens = u64(a.hidden.size(1));
  c.hidden = u64(a.hidden.size(2));
  c.k_heads = u64(a.num_k_heads);
  c.v_heads = u64(a.num_v_heads);
  c.head_k_dim = u64(a.head_k_dim);
  c.head_v_dim = u64(a.head_v_dim);
  c.conv_taps = u64(a.conv_weight.size(1));
  c.conv_width = u64(conv.out.size(2));
  c.io = io_of(a.hidden.scalar_type());
  c.tiled_heads = a.head_map == HeadMap::tiled;
  c.input_norm = a.input_norm_weight.defined();
  c.float_a = a.A_log.scalar_type() == c10::kFloat;
  c.float_dt = a.dt_bias.scalar_type() == c10::kFloat;
  c.eps = static_cast<float>(a.eps);
  if (a.mask.defined()) c.mask = {stride_of(a.mask, 0), stride_of(a.mask, 1)};
  if (conv.in.defined()) {
    c.conv_in = conv_layout(conv.in);
    c.state_in = state_layout(recurrent.in);
  }
  c.conv_out = conv_layout(conv.out);
  c.state_out = state_layout(recurrent.out);
  c.in_place = a.in_place && !a.conv_slots.defined();
  if (a.conv_slots.defined()) c.slots = {a.conv_slots.stride(0), a.recurrent_slots.stride(0)};
  return c;
}

Tensor run_shader_layer(const char* op, const LayerArgs& a, Variant variant, const StatePair& conv,
                        const StatePair& recurrent) {
  if (a.hidden.numel() == 0) {
    empty_call(conv);
    empty_call(recurrent);
    return at::empty_like(a.hidden, at::MemoryFormat::Contiguous);
  }
  check_weight(op, "in_proj[0]", a.in_proj[0]);
  check_weight(op, "out_proj[0]", a.out_proj[0]);

  // A state that the kernels cannot take is worked on as a copy.
  const bool slots = a.conv_slots.defined();
  if (slots && !usable_slots(a.recurrent_slots)) {
    refuse(op, "recurrent_slots", text("strides ", a.recurrent_slots.strides()),
           "whole heads on 16 bytes, Dk or Dv contiguous (nothing is copied)");
  }
  StatePair state = recurrent;
  if (state.in.defined() && !usable_state(state.in)) state.in = usable_copy(state.in);
  if (a.in_place) state.out = state.in;

  const plan::DeviceSpec device = current_device(a.hidden.device().type());
  const plan::LayerCall call = layer_call(a, conv, state);
  const plan::Program program = planned(op, [&] {
    const plan::Geometry geometry = current_geometry(device, call.io);
    return plan::plan_layer(call, device, geometry,
                            plan::cuts_of(name_of(variant), geometry.own_norm));
  });

  const Tensor hidden = plain(a.hidden);
  const Tensor output = at::empty(hidden.sizes(), hidden.options());
  std::map<std::string, Tensor> named{
      {"hidden", hidden},
      {"in_proj", a.in_proj[0]},
      {"out_proj", a.out_proj[0]},
      {"conv_weight", plain(a.conv_weight)},
      {"A_log", plain(a.A_log)},
      {"dt_bias", plain(a.dt_bias)},
      {"norm_weight", plain(a.norm_weight)},
      {"input_norm_weight", plain(a.input_norm_weight)},
      {"mask", a.mask},
      {"conv_in", slots ? a.conv_slots : conv.in},
      {"conv_out", slots ? a.conv_slots : conv.out},
      {"state_in", slots ? a.recurrent_slots : state.in},
      {"state_out", slots ? a.recurrent_slots : state.out},
      {"output", output},
  };
  const auto execute = [&] {
    Execution(program, named, hidden.device(), hidden.scalar_type(), device.lanes)
        .run(hidden.size(0) * hidden.size(1));
  };
  const plan::TaskProgram* const tasks = tasks_of(program);
  if (tasks == nullptr) {
    execute();
  } else {
    const auto lock = lock_blocks(hidden.device().type());
    const TaskBlocks& blocks = task_blocks(*tasks, hidden.device());
    const Tensor& control = slots ? a.control : blocks.control;
    named.insert({{"tasks", blocks.tasks}, {"counters", blocks.counters}, {"control", control}});
    run_persistent(op, variant, blocks, control, execute);
  }
  if (a.in_place && !state.out.is_same(recurrent.out)) {
    Tensor(recurrent.out).copy_(state.out);
  }
  return output;
}

Tensor run_packed_linear(const char* op, const Tensor& x, const Tensor& weight,
                         int64_t out_features, std::string_view lanes) {
  std::vector<int64_t> sizes = x.sizes().vec();
  const int64_t k = sizes.back();
  sizes.back() = out_features;
  const Tensor output = at::empty(sizes, x.options());
  if (output.numel() == 0) return output;
  check_weight(op, "weight[0]", weight);
  const int64_t rows = x.numel() / k;
  const plan::DeviceSpec device = current_device(x.device().type());
  const plan::Io io = io_of(x.scalar_type());
  const plan::Program program = planned(op, [&] {
    return plan::plan_linear({static_cast<uint64_t>(rows), static_cast<uint64_t>(k),
                              static_cast<uint64_t>(out_features), io},
                             device, current_geometry(device, io));
  });
  const std::map<std::string, Tensor> named{
      {"x", plain(x)}, {"weight", weight}, {"output", output}};
  Execution(program, named, x.device(), x.scalar_type(), lanes).run(rows);
  return output;
}

}  // namespace tmf
