#include "shader_layer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "errors.h"
#include "launches.h"
#include "packed_weight.h"
#include "plan/check.h"
#include "plan/persistent.h"
#include "plan_cache.h"
#include "runner.h"
#include "task_blocks.h"

namespace tmf {
namespace {

using at::Tensor;
constexpr uint64_t kWord = 16;      // bytes that the kernels load at once
constexpr uint64_t kScratch = 256;  // where a scratch buffer may begin

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

using Tensors = std::map<std::string_view, Tensor>;  // by buffer name, a literal

bool has_products(const plan::Program& program) {
  return std::any_of(program.dispatches.begin(), program.dispatches.end(),
                     [](const plan::Dispatch& d) { return d.product; });
}

// One allocation, and where the buffers that nobody gave lie in it.
struct Scratch {
  struct Place {
    int64_t offset = 0, bytes = 0;
  };
  Tensor whole;
  std::map<std::string_view, Place> places;  // by buffer name, the program's own
};

// Makes everything ready for the programs of a call, so that nothing is refused after the first of
// them has begun: their kernels, and memory for what none of `given` is.
Scratch make_ready(const std::vector<plan::ChunkProgram>& programs, const Tensors& given,
                   c10::Device device) {
  Scratch scratch;
  for (const auto& [chunk, program] : programs) {
    // A program that is all there is to encode is checked whole when it runs.
    if (programs.size() > 1 || has_products(program)) {
      runner_for(device.type())->make_ready(program);
    }
    for (const plan::Buffer& b : program.buffers) {
      if (given.count(b.name) != 0) continue;
      int64_t& bytes = scratch.places[b.name].bytes;
      bytes = std::max(bytes, static_cast<int64_t>(b.bytes));
    }
  }
  int64_t end = 0;
  for (auto& [name, place] : scratch.places) {
    place.offset = end;
    end += static_cast<int64_t>(plan::ceil_div(place.bytes, kScratch) * kScratch);
  }
  scratch.whole = at::empty({end}, at::TensorOptions().dtype(at::kByte).device(device));
  return scratch;
}

// Runs a program over tensors by buffer name.
class Execution {
 public:
  Execution(const plan::Program& program, const Tensors& given, const Scratch& scratch,
            c10::ScalarType type, std::string_view lanes)
      : program_(program),
        runner_(*runner_for(given.at("output").device().type())),
        type_(type),
        lanes_(lanes) {
    tensors_.reserve(program.buffers.size());
    views_.reserve(program.buffers.size());
    const bool products = has_products(program);  // which need tensors
    const BufferView whole = runner_.view(scratch.whole);
    for (const plan::Buffer& b : program.buffers) {
      if (const auto found = given.find(b.name); found != given.end()) {
        tensors_.push_back(found->second);
        views_.push_back(runner_.view(found->second));
      } else {
        const auto [offset, bytes] = scratch.places.at(b.name);
        tensors_.push_back(products ? scratch.whole.narrow(0, offset, bytes) : Tensor());
        views_.push_back({whole.object, whole.offset + offset, b.bytes});
      }
      TORCH_INTERNAL_ASSERT(views_.back().bytes >= b.bytes, b.name, " is smaller than planned");
    }
  }

  void run(int64_t rows) {
    if (!has_products(program_)) return runner_.run(program_, views_);
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
    Tensor t = tensors_.at(a.buffer);
    // scratch is bytes, and may be larger
    if (t.scalar_type() == at::kByte)
      t = t.narrow(0, 0, static_cast<int64_t>(a.extent)).view(type_);
    return t.view({rows, -1});
  }

  // aten's product on the weight unpacked into a scratch buffer.
  void product(const plan::Dispatch& d, int64_t rows) const {
    const Tensor x = matrix(d.arguments[1], rows);
    Tensor y = matrix(d.arguments[3], rows);
    const int64_t k = x.size(1);
    const Tensor& packed = tensors_.at(d.arguments[0].buffer);
    const Tensor weight = matrix(d.arguments[4], packed.numel() / k);
    unpack(packed, lanes_, weight);
    at::mm_out(y, x, weight.narrow(0, 0, y.size(1)).t());
    if (d.arguments[2].access != plan::Access::none) y.add_(matrix(d.arguments[2], rows));
  }

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

// What a chunk sees of tensors by buffer name: sequences of states, tokens of activations.
Tensors part_of(const plan::Chunk& c, const Tensors& whole, const StatePair& conv,
                const StatePair& recurrent) {
  const auto i64 = [](uint64_t v) { return static_cast<int64_t>(v); };
  const auto sequences = [&](const Tensor& t) {
    return t.defined() ? t.narrow(0, i64(c.batch_first), i64(c.batch)) : t;
  };
  Tensors part = whole;
  for (const char* name : {"hidden", "mask", "output"}) {
    const Tensor& t = part.at(name);
    if (t.defined()) part[name] = sequences(t).narrow(1, i64(c.first), i64(c.tokens));
  }
  part["conv_in"] = sequences(c.first > 0 ? conv.out : conv.in);
  part["conv_out"] = sequences(conv.out);
  part["state_in"] = sequences(c.first > 0 ? recurrent.out : recurrent.in);
  part["state_out"] = sequences(recurrent.out);
  return part;
}

// Does the work; if it throws, the tensors hold again what they held.
template <typename Work>
void or_restore(const std::vector<Tensor>& tensors, const Work& work) {
  std::vector<Tensor> before;
  for (const Tensor& t : tensors) before.push_back(t.clone());
  try {
    work();
  } catch (...) {
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(before[i]);
    throw;
  }
}

// What was planned for; a refusal of the planner becomes one of the op.
template <typename Make>
auto planned(const char* op, const Make& make) {
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

// Null if the program has none.
const plan::Dispatch* persistent_dispatch(const plan::Program& program) {
  for (const plan::Dispatch& d : program.dispatches) {
    if (d.tasks) return &d;
  }
  return nullptr;
}

// Milliseconds for eight rows of a 27B layer; once for each table of tasks, before its launches.
void prove(const char* op, plan::Program program, const plan::LayerCall& call) {
  plan::add_touches(program, call);
  const std::vector<std::string> found = plan::check(program);
  TORCH_CHECK(found.empty(), "mps_fusion::", op,
              ": planned a program that is not sound: ", found[0], "; please report the shapes");
}

std::mutex geometry_lock;
std::string geometry_text;

}  // namespace

std::string override_geometry(std::string_view text) {
  plan::change({}, text);
  const std::lock_guard guard(geometry_lock);
  return std::exchange(geometry_text, std::string(text));
}

namespace {

std::string geometry_changes() {
  const std::lock_guard guard(geometry_lock);
  return geometry_text;
}

}  // namespace

plan::Geometry current_geometry(const plan::DeviceSpec& device, plan::Io io) {
  return plan::change(plan::geometry_for(device, io), geometry_changes());
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
  const PlanKey key{call, device.name, device.msl, name_of(variant), geometry_changes()};
  const auto kept = cached_plan(key, [&] {
    return planned(op, [&] {
      const plan::Geometry geometry =
          plan::change(plan::geometry_for(device, call.io), key.geometry);
      return plan::plan_chunks(call, device, geometry,
                               plan::cuts_of(name_of(variant), geometry.own_norm));
    });
  });
  const std::vector<plan::ChunkProgram>& programs = *kept;

  const c10::DeviceGuard guard(a.hidden.device());
  const Tensor hidden = plain(a.hidden);
  const Tensor output = at::empty(hidden.sizes(), hidden.options());
  Tensors whole{
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
    const Scratch scratch = make_ready(programs, whole, hidden.device());
    const auto run = [&](const plan::ChunkProgram& c, const Tensors& tensors) {
      Execution(c.program, tensors, scratch, hidden.scalar_type(), device.lanes)
          .run(static_cast<int64_t>(c.chunk.batch * c.chunk.tokens));
    };
    if (programs.size() == 1) return run(programs.front(), whole);
    for (const plan::ChunkProgram& c : programs) run(c, part_of(c.chunk, whole, conv, state));
  };
  // An emulated kernel that faults is an error of this call. On a device it is one of a later call,
  // and nothing can be put back then.
  const auto execute_or_restore = [&] {
    if (!a.in_place || !hidden.is_cpu()) return execute();
    or_restore({conv.out, state.out}, execute);
  };
  const plan::Program& first = programs.front().program;
  // Of so few rows that it is the only program.
  const plan::Dispatch* const persistent = persistent_dispatch(first);
  if (persistent == nullptr) {
    execute_or_restore();
  } else {
    const auto lock = lock_blocks(hidden.device().type());
    TaskBlocks& blocks = task_blocks(persistent->tasks, call.in_place || slots, hidden.device(),
                                     [&] { prove(op, first, call); });
    const Tensor& control = slots ? a.control : blocks.control;
    whole.insert({{"tasks", blocks.tasks}, {"counters", blocks.counters}, {"control", control}});
    if (plan::timed(*persistent)) whole["times"] = new_task_times(blocks);
    run_launch(op, name_of(variant), blocks, control, execute_or_restore);
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
  const c10::DeviceGuard guard(x.device());
  const Tensors given{{"x", plain(x)}, {"weight", weight}, {"output", output}};
  const std::vector<plan::ChunkProgram> programs{{{}, program}};
  const Scratch scratch = make_ready(programs, given, x.device());
  Execution(program, given, scratch, x.scalar_type(), lanes).run(rows);
  return output;
}

}  // namespace tmf
