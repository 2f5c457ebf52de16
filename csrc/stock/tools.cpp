#include "stock/tools.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <bit>
#include <limits>

namespace tmf::stock {

c10::ScalarType wide_type(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor widened(const at::Tensor& t) { return t.to(wide_type(t)); }

int64_t chunk_size(int64_t tokens) {
  return std::min<int64_t>(kChunk, std::bit_ceil(static_cast<uint64_t>(tokens)));
}

at::Tensor spread_heads(const at::Tensor& x, int64_t num_v_heads, bool tiled) {
  const int64_t repeat = num_v_heads / x.size(2);
  const at::Tensor by_head = x.transpose(1, 2);
  if (repeat == 1) return by_head;
  return tiled ? by_head.repeat({1, repeat, 1, 1}) : by_head.repeat_interleave(repeat, 1);
}

at::Tensor decay_between(const at::Tensor& g) {
  const int64_t size = g.size(-1);
  const at::Tensor lower = at::ones({size, size}, g.options().dtype(at::kBool)).tril();
  std::vector<int64_t> sizes = g.sizes().vec();
  sizes.push_back(size);
  return g.unsqueeze(-1)
      .expand(sizes)
      .masked_fill(lower.tril(-1).logical_not(), 0)
      .cumsum(-2)
      .masked_fill_(lower.logical_not(), -std::numeric_limits<float>::infinity())
      .exp_();
}

at::Tensor unit_lower_inverse(const at::Tensor& A) {
  const int64_t size = A.size(-1);
  at::Tensor inverse = at::ones_like(A.select(-1, 0)).unsqueeze(-1).unsqueeze(-1);
  for (int64_t block = 1; block < size; block *= 2) {
    const int64_t pairs = size / (2 * block);
    const at::Tensor diagonal = A.unflatten(-1, {pairs, 2 * block})
                                    .unflatten(-3, {pairs, 2 * block})
                                    .diagonal(0, -4, -2)
                                    .movedim(-1, -3);  // (..., pairs, 2 block, 2 block)
    const at::Tensor low = diagonal.narrow(-2, block, block).narrow(-1, 0, block);
    const at::Tensor top = inverse.slice(-3, 0, std::nullopt, 2);
    const at::Tensor bottom = inverse.slice(-3, 1, std::nullopt, 2);
    const at::Tensor corner = at::matmul(at::matmul(bottom, low), top).neg_();
    inverse = at::cat({at::cat({top, at::zeros_like(top)}, -1), at::cat({corner, bottom}, -1)}, -2);
  }
  return inverse.squeeze(-3);
}

Compressed compress(const at::Tensor& mask) {
  const int64_t batch = mask.size(0), tokens = mask.size(1);
  const at::Tensor rank = mask.to(at::kLong).cumsum(1);
  // Masked tokens all write to one spare place behind the others.
  const at::Tensor slot = at::where(mask, rank.sub(1), tokens);
  const at::Tensor token = at::arange(tokens, rank.options()).expand({batch, tokens});
  const at::Tensor source = at::zeros({batch, tokens + 1}, rank.options()).scatter_(1, slot, token);
  return {source.narrow(1, 0, tokens), rank.sub(1).clamp_min_(0), rank.narrow(1, tokens - 1, 1)};
}

at::Tensor gather_tokens(const at::Tensor& x, const at::Tensor& index) {
  return x.gather(1, index.unsqueeze(-1).expand({-1, -1, x.size(2)}));
}

}  // namespace tmf::stock
