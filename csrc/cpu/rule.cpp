// gated_delta_rule: splits the heads into items and hands them to threads.
#include <ATen/Parallel.h>

#include <cstring>

#include "cpu/args.h"
#include "cpu/kernels.h"
#include "cpu/scratch.h"

namespace tmf::cpu {
namespace {

constexpr int64_t kRuleGrain =
    1 << 16;  // state elements times tokens that are worth waking a thread

bool is_head_dim(int64_t dim) { return dim == 32 || dim == 64 || dim == 128 || dim == 256; }

// Into how many items the column blocks of one key head are split. An item packs keys and queries
// for itself, so no more than keep the threads evenly busy. Results do not depend on it.
int64_t parts_of(int64_t blocks, int64_t key_heads) {
  int64_t parts = 1;
  while (key_heads * parts < 4 * at::get_num_threads() && blocks % (2 * parts) == 0) parts *= 2;
  return parts;
}

void clear_masked(const at::Tensor& out, const TokenList& list) {
  const int64_t row_bytes = out.size(2) * out.size(3) * out.element_size();
  auto* data = static_cast<char*>(out.data_ptr());
  for (int64_t b = 0; b < out.size(0); ++b) {
    for (int64_t t = 0; t < out.size(1); ++t) {
      if (!list.is_real(b, t)) std::memset(data + (b * out.size(1) + t) * row_bytes, 0, row_bytes);
    }
  }
}

}  // namespace

bool rule_supported(int64_t head_k_dim, int64_t head_v_dim) {
  return is_head_dim(head_k_dim) && is_head_dim(head_v_dim);
}

void gated_delta_rule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const at::Tensor& g, const at::Tensor& beta, const at::Tensor& mask,
                      const at::Tensor& state_in, const at::Tensor& state_out,
                      const at::Tensor& out, HeadMap head_map, double scale, bool qk_l2norm) {
  const int64_t batch = q.size(0), length = q.size(1), key_heads = q.size(2);
  const TokenList list(mask, batch, length);
  RuleArgs args = {};
  args.dtype = dtype_of(q);
  args.beta_is_f32 = beta.scalar_type() == at::kFloat;
  args.l2norm = qk_l2norm;
  args.tiled = head_map == HeadMap::tiled;
  args.scale = static_cast<float>(scale);
  args.Hk = key_heads;
  args.Hv = v.size(2);
  args.Dk = q.size(3);
  args.Dv = v.size(3);
  args.q = view_of(q);
  args.k = view_of(k);
  args.v = view_of(v);
  args.out = view_of(out);
  args.g = view_of(g);
  args.beta = view_of(beta);
  args.state_in = view_of(state_in);
  args.state_out = view_of(state_out);
  args.tokens = list.tokens();
  TORCH_INTERNAL_ASSERT(rule_supported(args.Dk, args.Dv) && args.Hv % args.Hk == 0);

  const Isa& kernels = isa();
  const int64_t blocks = args.Hv / args.Hk * (args.Dv / kernels.rule_columns);
  const int64_t parts = parts_of(blocks, batch * key_heads), step = blocks / parts;
  const int64_t scratch = kernels.rule_scratch(args, step);
  const int64_t grain = kRuleGrain / (step * kernels.rule_columns * args.Dk * length + 1) + 1;
  at::parallel_for(0, batch * key_heads * parts, grain, [&](int64_t begin, int64_t end) {
    float* memory = thread_scratch(scratch);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i / parts, first = i % parts * step;
      kernels.rule(args, {head / key_heads, head % key_heads, first, first + step}, memory);
    }
  });
  if (list.any_masked()) clear_masked(out, list);
}

}  // namespace tmf::cpu
