#include "op_args.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/SymInt.h>

#include "errors.h"
#include "packed_weight.h"
#include "shaders/include/tasks.h"

namespace tmf {
namespace {

using c10::SymInt;
using Sizes = std::vector<SymInt>;

bool holds(const c10::SymBool& condition) { return condition.expect_true(__FILE__, __LINE__); }

// A size that a traced program may be specialised on: head counts, head dims, the kernel width.
int64_t fixed(const at::Tensor& t, int64_t dim) {
  return t.sym_size(dim).guard_int(__FILE__, __LINE__);
}

// An argument as a refusal names it; only a refusal makes the text.
struct Name {
  Name(const char* argument, int64_t index = -1) : argument(argument), index(index) {}

  std::string str() const { return index < 0 ? argument : text(argument, "[", index, "]"); }

  const char* argument;
  int64_t index;  // in a list, or -1
};

// The checks of one call; `reference` is the tensor whose device all others must share.
class Checks {
 public:
  Checks(const char* op, const at::Tensor& reference, bool backward = false)
      : op_(op),
        reference_(reference),
        wide_(backward && reference.scalar_type() == c10::kDouble ? c10::kDouble : c10::kFloat) {}

  // What sums, decays and the recurrent state are in.
  c10::ScalarType wide() const { return wide_; }

  void rank(const at::Tensor& t, const char* name, int64_t rank, const char* meaning) const {
    if (t.dim() != rank) refuse(op_, name, shape_of(t), meaning);
  }

  void shape(const at::Tensor& t, const Name& name, const Sizes& sizes, const char* meaning) const {
    bool equal = t.dim() == static_cast<int64_t>(sizes.size());
    for (int64_t i = 0; equal && i < t.dim(); ++i) equal = holds(t.sym_size(i).sym_eq(sizes[i]));
    if (!equal)
      refuse(op_, name.str(), shape_of(t), text(meaning, " = ", c10::SymIntArrayRef(sizes)));
  }

  void dtype(const at::Tensor& t, const Name& name,
             std::initializer_list<c10::ScalarType> accepted) const {
    for (c10::ScalarType type : accepted) {
      if (t.scalar_type() == type) return;
    }
    std::string names;
    for (c10::ScalarType type : accepted) {
      const std::string one = text("dtype ", dtype_name(type));
      if (names.find(one) == std::string::npos) names += names.empty() ? one : " or " + one;
    }
    refuse(op_, name.str(), text("dtype ", dtype_name(t.scalar_type())), names);
  }

  void place(const at::Tensor& t, const Name& name) const {
    if (t.device() != reference_.device()) {
      refuse(op_, name.str(), text("device ", t.device()), text("device ", reference_.device()));
    }
    if (t.layout() != c10::kStrided)
      refuse(op_, name.str(), text("layout ", t.layout()), "strided");
    if (t.requires_grad() && at::GradMode::is_enabled()) {
      const std::string_view op = op_;
      refuse(op_, name.str(), "a tensor that requires grad",
             text("no gradient is needed (torch.no_grad(), or requires_grad=False): this op has no "
                  "backward",
                  op.back() == '_' ? text("; ", op.substr(0, op.size() - 1), " has one") : ""));
    }
  }

  void positive(int64_t value, const char* name) const {
    if (value < 1) refuse(op_, name, text(value), "a positive integer");
  }

  void heads(int64_t num_k_heads, int64_t num_v_heads) const {
    if (num_v_heads % num_k_heads != 0) {
      refuse(op_, "num_v_heads", text(num_v_heads),
             text("a multiple of the ", num_k_heads, " key heads"));
    }
  }

  void mask(const at::Tensor& mask, const SymInt& batch, const SymInt& tokens) const {
    if (!mask.defined()) return;
    place(mask, "mask");
    dtype(mask, "mask", {c10::kBool});
    shape(mask, "mask", {batch, tokens}, "(B, T)");
  }

  // (B, C, W) with W >= K - 1, in x's dtype.
  void conv_state(const at::Tensor& state, const char* name, const SymInt& batch,
                  const SymInt& channels, int64_t width, c10::ScalarType type, bool written) const {
    place(state, name);
    dtype(state, name, {type});
    const bool fits = state.dim() == 3 && holds(state.sym_size(0).sym_eq(batch)) &&
                      holds(state.sym_size(1).sym_eq(channels)) &&
                      holds(state.sym_size(2).sym_ge(width - 1));
    if (!fits) {
      refuse(op_, name, shape_of(state),
             text("(B, C, W) = [", batch, ", ", channels, ", W >= ", width - 1, "]"));
    }
    if (written) writable(state, name);
  }

  // (B, Hv, Dk, Dv) float32 with one of the last two dims contiguous.
  void recurrent_state(const at::Tensor& state, const char* name, const SymInt& batch,
                       int64_t num_v_heads, int64_t head_k_dim, int64_t head_v_dim,
                       bool written) const {
    place(state, name);
    dtype(state, name, {wide_});
    shape(state, name, {batch, num_v_heads, head_k_dim, head_v_dim}, "(B, Hv, Dk, Dv)");
    const SymInt k = state.sym_stride(2), v = state.sym_stride(3);
    const bool v_contiguous = (head_v_dim == 1 || v == 1) && (head_k_dim == 1 || k >= head_v_dim);
    const bool k_contiguous = (head_k_dim == 1 || k == 1) && (head_v_dim == 1 || v >= head_k_dim);
    if (!v_contiguous && !k_contiguous) {
      refuse(op_, name, text("strides ", state.sym_strides()),
             "a state whose Dk or Dv elements are contiguous (stride 1, the other dim's stride at "
             "least its size)");
    }
    if (written) writable(state, name);
  }

  // Two tensors of which the first is written.
  void apart(const at::Tensor& written, const char* name, const at::Tensor& other,
             const Name& other_name) const {
    if (written.is_meta() || !other.defined()) return;
    const auto overlap = at::get_overlap_status(written, other);
    if (overlap == at::MemOverlapStatus::Full || overlap == at::MemOverlapStatus::Partial) {
      refuse(op_, name, "memory shared with " + other_name.str(),
             "memory of its own (it is written)");
    }
  }

  static std::string shape_of(const at::Tensor& t) { return text("shape ", t.sym_sizes()); }

 private:
  void writable(const at::Tensor& t, const char* name) const {
    if (!t.is_meta() && at::has_internal_overlap(t) == at::MemOverlap::Yes) {
      refuse(op_, name, text("strides ", t.sym_strides(), " (elements share memory)"),
             "a tensor whose elements are distinct (it is written)");
    }
  }

  const char* op_;
  const at::Tensor& reference_;
  c10::ScalarType wide_;
};

void check_floating(const Checks& checks, const at::Tensor& t, const char* name) {
  checks.place(t, name);
  checks.dtype(t, name, {checks.wide(), c10::kHalf, c10::kBFloat16});
}

void check_projection(const Checks& checks, const char* op, const std::vector<at::Tensor>& tensors,
                      const char* name, c10::ScalarType type, const std::vector<Sizes>& sizes,
                      const char* accepted) {
  if (tensors.size() != sizes.size()) {
    refuse(op, name, text("a list of ", tensors.size(), " tensors"), accepted);
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    const Name one(name, static_cast<int64_t>(i));
    checks.place(tensors[i], one);
    checks.dtype(tensors[i], one, {type});
    checks.shape(tensors[i], one, sizes[i],
                 sizes[i].size() == 1 ? "(elements in whole tiles)" : "(rows, columns)");
  }
}

// One flat tensor: (n, k) in whole tiles of 16 rows.
void check_packed(const Checks& checks, const char* op, const std::vector<at::Tensor>& tensors,
                  const char* name, c10::ScalarType type, const SymInt& n, const SymInt& k) {
  const SymInt elements = (n + 15) / 16 * 16 * k;
  check_projection(checks, op, tensors, name, type, {{elements}}, "one packed tensor");
  if (!holds(tensors[0].sym_stride(0).sym_eq(1))) {
    refuse(op, Name(name, 0).str(), text("strides ", tensors[0].sym_strides()), "contiguous");
  }
}

void check_projections(const Checks& checks, const char* op, const LayerArgs& a) {
  const c10::ScalarType type = a.hidden.scalar_type();
  const SymInt hidden = a.hidden.sym_size(2);
  const Sizes qkv{a.conv_dim(), hidden}, z{a.value_dim(), hidden}, gate{a.num_v_heads, hidden};
  if (a.weight_format != "rows") {
    const int64_t rows = a.conv_dim() + a.value_dim() + 2 * a.num_v_heads;
    check_packed(checks, op, a.in_proj, "in_proj", type, rows, hidden);
    check_packed(checks, op, a.out_proj, "out_proj", type, hidden, a.value_dim());
    return;
  }
  const bool joined = a.in_proj.size() == 1;
  const std::vector<Sizes> rows =
      joined ? std::vector<Sizes>{{a.conv_dim() + a.value_dim() + 2 * a.num_v_heads, hidden}}
             : std::vector<Sizes>{qkv, z, gate, gate};
  check_projection(checks, op, a.in_proj, "in_proj", type, rows,
                   "one tensor with the rows of q, k, v, z, b, a, or four: qkv, z, b, a");
  check_projection(checks, op, a.out_proj, "out_proj", type, {{hidden, a.value_dim()}},
                   "one tensor");
}

void check_weights(const Checks& checks, const char* op, const LayerArgs& a) {
  const c10::ScalarType type = a.hidden.scalar_type();
  const SymInt hidden = a.hidden.sym_size(2);
  check_projections(checks, op, a);
  checks.place(a.conv_weight, "conv_weight");
  checks.dtype(a.conv_weight, "conv_weight", {type});
  checks.rank(a.conv_weight, "conv_weight", 2, "(conv_dim, K)");
  checks.shape(a.conv_weight, "conv_weight", {a.conv_dim(), a.conv_weight.sym_size(1)},
               "(conv_dim, K)");
  if (holds(a.conv_weight.sym_size(1).sym_lt(1))) {
    refuse(op, "conv_weight", Checks::shape_of(a.conv_weight), "(conv_dim, K) with K >= 1");
  }
  for (const auto& [t, name] : {std::pair{&a.A_log, "A_log"}, std::pair{&a.dt_bias, "dt_bias"}}) {
    checks.place(*t, name);
    checks.dtype(*t, name, {type, checks.wide()});
    checks.shape(*t, name, {a.num_v_heads}, "(Hv)");
  }
  checks.place(a.norm_weight, "norm_weight");
  checks.dtype(a.norm_weight, "norm_weight", {type});
  checks.shape(a.norm_weight, "norm_weight", {a.head_v_dim}, "(Dv)");
  if (a.input_norm_weight.defined()) {
    checks.place(a.input_norm_weight, "input_norm_weight");
    checks.dtype(a.input_norm_weight, "input_norm_weight", {type});
    checks.shape(a.input_norm_weight, "input_norm_weight", {hidden}, "(hidden)");
  }
}

void check_states(const Checks& checks, const char* op, const LayerArgs& a) {
  if (a.conv_state.defined() != a.recurrent_state.defined()) {
    const bool has_conv = a.conv_state.defined();
    refuse(op, has_conv ? "recurrent_state" : "conv_state", "None",
           text("both states or neither (", has_conv ? "conv_state" : "recurrent_state",
                " was given)"));
  }
  if (!a.conv_state.defined()) return;
  const SymInt batch = a.hidden.sym_size(0);
  checks.conv_state(a.conv_state, "conv_state", batch, a.conv_dim(), fixed(a.conv_weight, 1),
                    a.hidden.scalar_type(), a.in_place);
  checks.recurrent_state(a.recurrent_state, "recurrent_state", batch, a.num_v_heads, a.head_k_dim,
                         a.head_v_dim, a.in_place);
}

void check_written_apart(const Checks& checks, const LayerArgs& a) {
  if (!a.in_place) return;
  checks.apart(a.conv_state, "conv_state", a.recurrent_state, "recurrent_state");
  const auto apart = [&](const at::Tensor& read, const Name& name) {
    checks.apart(a.conv_state, "conv_state", read, name);
    checks.apart(a.recurrent_state, "recurrent_state", read, name);
  };
  apart(a.hidden, "hidden");
  apart(a.conv_weight, "conv_weight");
  apart(a.A_log, "A_log");
  apart(a.dt_bias, "dt_bias");
  apart(a.norm_weight, "norm_weight");
  apart(a.mask, "mask");
  apart(a.out_proj[0], {"out_proj", 0});
  apart(a.input_norm_weight, "input_norm_weight");
  for (size_t i = 0; i < a.in_proj.size(); ++i) {
    apart(a.in_proj[i], {"in_proj", static_cast<int64_t>(i)});
  }
}

}  // namespace

void check_slots(const char* op, const at::Tensor& hidden, const at::Tensor& conv_slots,
                 const at::Tensor& recurrent_slots, const at::Tensor& control) {
  const Checks checks(op, hidden);
  const std::pair<const at::Tensor*, const char*> written[] = {
      {&conv_slots, "conv_slots"}, {&recurrent_slots, "recurrent_slots"}, {&control, "control"}};
  checks.place(control, "control");
  checks.dtype(control, "control", {c10::kInt});
  if (control.dim() != 1 || !control.is_contiguous() || fixed(control, 0) < kControlWords) {
    refuse(op, "control", Checks::shape_of(control),
           text("a contiguous vector of at least ", +kControlWords, " words"));
  }
  for (const auto& [slots, name] : {written[0], written[1]}) {
    const int64_t rank = slots == &conv_slots ? 4 : 5;
    if (slots->dim() != rank || fixed(*slots, 0) != 2) {
      refuse(op, name, Checks::shape_of(*slots),
             text("two slots: ", rank, " dims, the first is 2"));
    }
    checks.apart(slots->select(0, 0), name, slots->select(0, 1), "the other slot");
  }
  for (const auto& [one, name] : written) {
    checks.apart(*one, name, hidden, "hidden");
    for (const auto& [other, other_name] : written) {
      if (one < other) checks.apart(*one, name, *other, other_name);
    }
  }
}

void check(const char* op, const LayerArgs& a) {
  const Checks checks(op, a.hidden, a.backward);
  check_floating(checks, a.hidden, "hidden");
  checks.rank(a.hidden, "hidden", 3, "(B, T, hidden)");
  checks.positive(a.num_k_heads, "num_k_heads");
  checks.positive(a.num_v_heads, "num_v_heads");
  checks.positive(a.head_k_dim, "head_k_dim");
  checks.positive(a.head_v_dim, "head_v_dim");
  checks.heads(a.num_k_heads, a.num_v_heads);
  if (!(a.eps >= 0)) refuse(op, "eps", text(a.eps), "a number >= 0");
  if (a.weight_format != "rows" && lanes_of(a.weight_format).empty()) {
    refuse(op, "weight_format", text("'", a.weight_format, "'"), weight_format_names());
  }
  check_weights(checks, op, a);
  check_states(checks, op, a);
  checks.mask(a.mask, a.hidden.sym_size(0), a.hidden.sym_size(1));
  check_written_apart(checks, a);
}

void check(const char* op, const LinearArgs& a) {
  const Checks checks(op, a.x);
  check_floating(checks, a.x, "x");
  if (a.x.dim() < 1) refuse(op, "x", Checks::shape_of(a.x), "(.., in_features)");
  if (lanes_of(a.weight_format).empty()) {
    refuse(op, "weight_format", text("'", a.weight_format, "'"),
           weight_format_names().substr(sizeof("'rows', ") - 1));
  }
  checks.positive(a.out_features, "out_features");
  const SymInt k = a.x.sym_size(-1);
  if (holds(k.sym_lt(1)) || !holds((k % 32).sym_eq(0))) {
    refuse(op, "x", Checks::shape_of(a.x), "(.., in_features), a positive multiple of 32");
  }
  check_packed(checks, op, a.weight, "weight", a.x.scalar_type(), a.out_features, k);
}

void check(const char* op, const RuleArgs& a) {
  const Checks checks(op, a.q, a.backward);
  check_floating(checks, a.q, "q");
  const c10::ScalarType type = a.q.scalar_type();
  checks.rank(a.q, "q", 4, "(B, T, Hk, Dk)");
  checks.rank(a.v, "v", 4, "(B, T, Hv, Dv)");
  const SymInt batch = a.q.sym_size(0), tokens = a.q.sym_size(1);
  const int64_t num_k_heads = fixed(a.q, 2), head_k_dim = fixed(a.q, 3);
  const int64_t num_v_heads = fixed(a.v, 2), head_v_dim = fixed(a.v, 3);
  for (const auto& [t, name] : {std::pair{&a.k, "k"}, std::pair{&a.v, "v"}}) {
    checks.place(*t, name);
    checks.dtype(*t, name, {type});
  }
  checks.shape(a.k, "k", {batch, tokens, num_k_heads, head_k_dim}, "(B, T, Hk, Dk)");
  checks.shape(a.v, "v", {batch, tokens, num_v_heads, head_v_dim}, "(B, T, Hv, Dv)");
  if (num_k_heads < 1 || head_k_dim < 1) refuse(op, "q", Checks::shape_of(a.q), "Hk, Dk >= 1");
  if (num_v_heads < 1 || head_v_dim < 1) refuse(op, "v", Checks::shape_of(a.v), "Hv, Dv >= 1");
  checks.heads(num_k_heads, num_v_heads);
  checks.place(a.g, "g");
  checks.dtype(a.g, "g", {checks.wide()});
  checks.shape(a.g, "g", {batch, tokens, num_v_heads}, "(B, T, Hv)");
  checks.place(a.beta, "beta");
  checks.dtype(a.beta, "beta", {type, checks.wide()});
  checks.shape(a.beta, "beta", {batch, tokens, num_v_heads}, "(B, T, Hv)");
  checks.mask(a.mask, batch, tokens);
  if (!a.state.defined()) return;
  checks.recurrent_state(a.state, "state", batch, num_v_heads, head_k_dim, head_v_dim, a.in_place);
  if (!a.in_place) return;
  for (const auto& [t, name] :
       {std::pair{&a.q, "q"}, std::pair{&a.k, "k"}, std::pair{&a.v, "v"}, std::pair{&a.g, "g"},
        std::pair{&a.beta, "beta"}, std::pair{&a.mask, "mask"}}) {
    checks.apart(a.state, "state", *t, name);
  }
}

void check(const char* op, const ConvArgs& a) {
  const Checks checks(op, a.x, a.backward);
  check_floating(checks, a.x, "x");
  checks.rank(a.x, "x", 3, "(B, C, T)");
  checks.place(a.weight, "weight");
  checks.dtype(a.weight, "weight", {a.x.scalar_type()});
  checks.rank(a.weight, "weight", 2, "(C, K)");
  checks.shape(a.weight, "weight", {a.x.sym_size(1), a.weight.sym_size(1)}, "(C, K)");
  const int64_t width = fixed(a.weight, 1);
  if (width < 1) refuse(op, "weight", Checks::shape_of(a.weight), "(C, K) with K >= 1");
  checks.mask(a.mask, a.x.sym_size(0), a.x.sym_size(2));
  if (!a.state.defined()) return;
  checks.conv_state(a.state, "state", a.x.sym_size(0), a.x.sym_size(1), width, a.x.scalar_type(),
                    a.in_place);
  if (!a.in_place) return;
  for (const auto& [t, name] :
       {std::pair{&a.x, "x"}, std::pair{&a.weight, "weight"}, std::pair{&a.mask, "mask"}}) {
    checks.apart(a.state, "state", *t, name);
  }
}

bool parse_activation(const char* op, std::optional<std::string_view> activation) {
  if (!activation.has_value()) return false;
  if (*activation == "silu" || *activation == "swish") return true;
  refuse(op, "activation", text("'", *activation, "'"), "None, 'silu' or 'swish'");
}

}  // namespace tmf
