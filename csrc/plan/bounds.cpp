// What each kernel touches, from its argument structs alone: a second reading of
// shaders/README.md, kept apart from the planner's.
#include <cstring>
#include <optional>

#include "call.h"
#include "check.h"
#include "constants.h"
#include "shaders/include/abi.h"
#include "tasks.h"

namespace tmf::plan {
namespace {

// An argument as the contract has it: bytes touched from the bound address on, 0: nothing.
struct Need {
  Access access = Access::none;
  uint64_t bytes = 0;
};

// A dispatch as its kernel sees it.
class Seen {
 public:
  explicit Seen(const Dispatch& d) : d_(d) {
    const std::string& name = d.kernel.name;
    io_ = name.find("_bf16_") != std::string::npos || name.find("_f16_f32") != std::string::npos
              ? 2
              : 4;
    const size_t dims = name.find("_dk");
    if (dims == std::string::npos) return;
    dk_ = std::stoul(name.substr(dims + 3));
    dv_ = std::stoul(name.substr(name.find("dv", dims) + 2));
  }

  bool on(FunctionConstant id) const {
    const auto found = d_.kernel.constants.find(id);
    return found != d_.kernel.constants.end() && found->second != 0;
  }
  template <typename Struct>
  std::optional<Struct> arguments(size_t index) const {
    if (index >= d_.arguments.size() || d_.arguments[index].bytes.size() != sizeof(Struct)) {
      return std::nullopt;
    }
    Struct value;
    std::memcpy(&value, d_.arguments[index].bytes.data(), sizeof value);
    return value;
  }

  Need read(uint64_t bytes, bool active = true) const {
    return active ? Need{Access::read, bytes} : Need{};
  }
  Need write(uint64_t bytes, bool active = true) const {
    return active ? Need{Access::write, bytes} : Need{};
  }

  std::vector<Need> row_norm(const ProjectionArgs& a) const {
    return {read(rows_of(a.rows, a.x_stride, a.k)),
            read(a.k * io_),
            write(rows_of(a.rows, a.y_stride, a.k)),
            {}};
  }

  std::vector<Need> projection(const ProjectionArgs& a, const GdnArgs& g) const {
    const bool tiles = a.groups > 0, state = on(kWritesConvState);
    std::vector<Need> needs{read(uint64_t{a.tiles} * 16 * a.k * io_, tiles),
                            read(rows_of(a.rows, a.x_stride, a.k), tiles),
                            read(a.k * io_, tiles && on(kNorm)),
                            read(rows_of(a.rows, a.r_stride, a.n), tiles && on(kResidual)),
                            write(rows_of(a.rows, a.y_stride, a.n), tiles),
                            {}};
    needs.push_back(read(state ? y(g, g.conv_channels) : 0, state));
    needs.push_back(read(conv_in(g), state && on(kConvGiven)));
    needs.push_back(write(conv_out(g), state));
    needs.push_back(read(mask(g), state && on(kMask)));
    needs.push_back({});
    return needs;
  }

  std::vector<Need> conv(const GdnArgs& g) const {
    return {
        read(y(g, g.conv_channels)),           read(uint64_t{g.conv_channels} * g.conv_taps * io_),
        read(conv_in(g), on(kConvGiven)),      read(mask(g), on(kMask)),
        write(stage(g, g.conv_channels, io_)), {}};
  }

  std::vector<Need> qk_gates(const GdnArgs& g) const {
    return {read(stage(g, g.conv_channels, io_)),
            read(y(g, columns(g))),
            read(uint64_t{g.v_heads} * (on(kFloatA) ? 4 : io_)),
            read(uint64_t{g.v_heads} * (on(kFloatDt) ? 4 : io_)),
            read(mask(g), on(kMask)),
            write(stage(g, g.k_heads * dk_, 4)),
            write(stage(g, g.k_heads * dk_, 4)),
            write(stage(g, g.k_heads, 4)),
            write(stage(g, g.v_heads * 2, 4)),
            {}};
  }

  std::vector<Need> rule(const GdnArgs& g) const {
    return {read(stage(g, g.k_heads * dk_, 4)),
            read(stage(g, g.k_heads * dk_, 4)),
            read(stage(g, g.k_heads, 4)),
            read(stage(g, g.v_heads * 2, 4)),
            read(stage(g, g.conv_channels, io_)),
            read(state(g.batch, g.state_in_batch, g.v_heads, g.state_in_head), on(kStateGiven)),
            write(state(g.batch, g.state_out_batch, g.v_heads, g.state_out_head)),
            read(mask(g), on(kMask)),
            write(stage(g, g.v_heads * dv_, io_)),
            {}};
  }

  std::vector<Need> gated_norm(const GdnArgs& g) const {
    const uint64_t values = g.v_heads * dv_;
    return {read(stage(g, values, io_)), read(y(g, columns(g) - 2 * g.v_heads)), read(dv_ * io_),
            read(mask(g), on(kMask)),    write(stage(g, values, io_)),           {}};
  }

  std::vector<Need> core(const GdnArgs& g) const {
    return {read(y(g, columns(g))),
            read(uint64_t{g.conv_channels} * g.conv_taps * io_),
            read(conv_in(g), on(kConvGiven)),
            read(uint64_t{g.v_heads} * (on(kFloatA) ? 4 : io_)),
            read(uint64_t{g.v_heads} * (on(kFloatDt) ? 4 : io_)),
            read(dv_ * io_),
            read(state(g.batch, g.state_in_batch, g.v_heads, g.state_in_head), on(kStateGiven)),
            write(state(g.batch, g.state_out_batch, g.v_heads, g.state_out_head)),
            read(mask(g), on(kMask)),
            write(stage(g, g.v_heads * dv_, io_)),
            {}};
  }

  std::vector<Need> persistent(const ProjectionArgs& in, const ProjectionArgs& out,
                               const GdnArgs& g, const TaskArgs& t) const {
    const bool whole = on(kInProjection);
    const uint64_t y_bytes = y(g, columns(g)), es = io_;
    const TaskProgram& tasks = *d_.tasks;
    std::vector<Need> needs = core(g);
    const auto also = [](Need need, uint64_t slot) {
      return need.access == Access::none ? need : Need{need.access, need.bytes + slot};
    };
    needs[6] = also(needs[6], uint64_t{t.state_slot} * 4);
    needs[7] = also(needs[7], uint64_t{t.state_slot} * 4);
    // core has Y in front, G and its struct at the end
    std::vector<Need> all{read(uint64_t{in.tiles} * 16 * in.k * es, whole),
                          read(rows_of(in.rows, in.x_stride, in.k), whole),
                          read(in.k * es, on(kNorm)),
                          read(uint64_t{out.tiles} * 16 * out.k * es),
                          read(rows_of(out.rows, out.r_stride, out.n), on(kResidual)),
                          needs[1],
                          also(needs[2], t.conv_slot * es),
                          also(write(conv_out(g)), t.conv_slot * es)};
    all.insert(all.end(), needs.begin() + 3, needs.begin() + 9);
    all.push_back(whole ? write(y_bytes) : read(y_bytes));
    all.insert(all.end(), 2, needs[9]);
    all.push_back(write(rows_of(out.rows, out.y_stride, out.n)));
    all.push_back(read(uint64_t{t.tasks} * sizeof(TaskRecord)));
    all.push_back(read(tasks.edge_bytes()));
    all.push_back(
        {Access::read_write, 4 * (kCounterFirst + uint64_t{kCounterStride} * tasks.counters)});
    all.push_back({Access::read_write, 4 * kControlWords});
    all.insert(all.end(), 4, {});
    if (!on(kTimes)) return all;
    all.push_back({Access::read_write, t.tasks * sizeof(TaskTime)});
    all.push_back({Access::read_write, t.tasks * d_.threads / 32 * sizeof(TaskWait)});
    return all;
  }

  std::vector<Need> commit(const CommitArgs& a) const {
    const uint64_t conv = uint64_t{a.batch} * a.channels * a.width;
    const uint64_t states = uint64_t{a.batch} * a.heads * a.head_elements;
    const uint64_t last_conv = uint64_t{a.batch - 1} * a.conv_batch +
                               uint64_t{a.channels - 1} * a.conv_channel +
                               uint64_t{a.width - 1} * a.conv_time;
    const uint64_t last_head =
        uint64_t{a.batch - 1} * a.state_batch + uint64_t{a.heads - 1} * a.state_head;
    return {{Access::read_write, 4 * kControlWords},
            read(conv * io_),
            read(states * 4),
            write((last_conv + 1) * io_),
            write((last_head + a.head_elements) * 4),
            {}};
  }

 private:
  uint64_t rows_of(uint64_t rows, uint64_t stride, uint64_t used) const {
    return rows == 0 ? 0 : ((rows - 1) * stride + used) * io_;
  }
  uint64_t columns(const GdnArgs& g) const {
    return 2 * g.k_heads * dk_ + 2 * g.v_heads * dv_ + 2 * uint64_t{g.v_heads};
  }
  // Rows of Y up to the last token of the dispatch, up to so many columns.
  uint64_t y(const GdnArgs& g, uint64_t used) const {
    return rows_of(last_row(g), g.y_stride, used);
  }
  uint64_t stage(const GdnArgs& g, uint64_t width, uint64_t size) const {
    return last_row(g) * width * size;
  }
  static uint64_t last_row(const GdnArgs& g) {
    return uint64_t{g.batch - 1} * g.tokens + g.first + g.count;
  }
  uint64_t mask(const GdnArgs& g) const {
    return 1 + uint64_t{g.batch - 1} * g.mask_batch + uint64_t{g.tokens - 1} * g.mask_token;
  }
  uint64_t conv_in(const GdnArgs& g) const {
    return (1 + uint64_t{g.batch - 1} * g.conv_in_batch +
            uint64_t{g.conv_channels - 1} * g.conv_in_channel +
            uint64_t{g.conv_width - 1} * g.conv_in_time) *
           io_;
  }
  uint64_t conv_out(const GdnArgs& g) const {
    return (1 + uint64_t{g.batch - 1} * g.conv_out_batch +
            uint64_t{g.conv_channels - 1} * g.conv_out_channel +
            uint64_t{g.conv_width - 1} * g.conv_out_time) *
           io_;
  }
  uint64_t state(uint64_t batch, uint64_t batch_stride, uint64_t heads, uint64_t stride) const {
    return ((batch - 1) * batch_stride + (heads - 1) * stride + dk_ * dv_) * 4;
  }

  const Dispatch& d_;
  uint64_t io_ = 4, dk_ = 0, dv_ = 0;
};

// Empty if the dispatch is no kernel of ours or its structs are not where they belong.
std::optional<std::vector<Need>> needs_of(const Dispatch& d) {
  const Seen seen(d);
  const std::string& family = d.kernel.family;
  if (family == "rms_norm") {
    if (const auto a = seen.arguments<ProjectionArgs>(3)) return seen.row_norm(*a);
    return std::nullopt;
  }
  if (family == "projection") {
    const auto a = seen.arguments<ProjectionArgs>(5);
    const auto g = seen.arguments<GdnArgs>(10);
    if (a && g) return seen.projection(*a, *g);
    return std::nullopt;
  }
  if (family == "persistent") {
    const auto in = seen.arguments<ProjectionArgs>(22), out = seen.arguments<ProjectionArgs>(23);
    const auto g = seen.arguments<GdnArgs>(24);
    const auto t = seen.arguments<TaskArgs>(25);
    if (in && out && g && t && d.tasks) return seen.persistent(*in, *out, *g, *t);
    return std::nullopt;
  }
  if (family == "commit") {
    if (const auto a = seen.arguments<CommitArgs>(5)) return seen.commit(*a);
    return std::nullopt;
  }
  const size_t last = d.arguments.size() - 1;
  const auto g = seen.arguments<GdnArgs>(last);
  if (!g || g->batch == 0 || g->tokens == 0) return std::nullopt;
  if (family == "conv") return seen.conv(*g);
  if (family == "qk_gates") return seen.qk_gates(*g);
  if (family == "rule") return seen.rule(*g);
  if (family == "gated_norm") return seen.gated_norm(*g);
  if (family == "core") return seen.core(*g);
  return std::nullopt;
}

}  // namespace

std::vector<std::string> check_bounds(const Program& program) {
  std::vector<std::string> errors;
  for (size_t i = 0; i < program.dispatches.size(); ++i) {
    const Dispatch& d = program.dispatches[i];
    const std::string where = "dispatch " + std::to_string(i) + " (" + d.stage + ")";
    const auto needs = d.product ? std::nullopt : needs_of(d);
    if (!d.product && (!needs || needs->size() != d.arguments.size())) {
      errors.push_back(where + ": arguments that " + d.kernel.family + " does not take");
      continue;
    }
    for (const Argument& a : d.arguments) {
      if (a.buffer < 0) continue;
      const Buffer& b = program.buffers.at(a.buffer);
      if (a.extent > b.bytes || a.offset > b.bytes - a.extent) {
        errors.push_back(where + " reaches byte " + std::to_string(a.offset + a.extent) + " of " +
                         b.name + ", which has " + std::to_string(b.bytes));
      }
      if (!needs) continue;
      const Need& need = (*needs)[a.index];
      if (need.access != a.access) errors.push_back(where + ": wrong access of " + b.name);
      if (need.bytes > a.extent) {
        errors.push_back(where + " touches " + std::to_string(need.bytes) + " bytes of " + b.name +
                         ", declared are " + std::to_string(a.extent));
      }
    }
  }
  return errors;
}

}  // namespace tmf::plan
