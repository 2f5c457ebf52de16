#include "stock/rule.h"

#include <ATen/ops/add.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <bit>
#include <limits>

namespace tmf::stock {
namespace {

constexpr int64_t kChunk = 64;
constexpr double kL2NormEps = 1e-6;

// Everything float32 and head-major; masked tokens changed into tokens that do nothing.
struct Inputs {
  at::Tensor q, k, v;  // (B, Hv, T, Dk) twice, (B, Hv, T, Dv)
  at::Tensor g, beta;  // (B, Hv, T)
};

at::Tensor l2_normalised(const at::Tensor& x) {
  return x.mul(at::rsqrt(x.square().sum(-1, /*keepdim=*/true).add_(kL2NormEps)));
}

// (B, T, Hk, D) -> (B, Hv, T, D)
at::Tensor spread_heads(const at::Tensor& x, int64_t num_v_heads, HeadMap head_map) {
  const int64_t repeat = num_v_heads / x.size(2);
  const at::Tensor by_head = x.transpose(1, 2);
  if (repeat == 1) return by_head;
  return head_map == HeadMap::block ? by_head.repeat_interleave(repeat, 1)
                                    : by_head.repeat({1, repeat, 1, 1});
}

Inputs prepare(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& g,
               const at::Tensor& beta, const at::Tensor& mask, HeadMap head_map, double scale,
               bool qk_l2norm) {
  at::Tensor query = q.to(at::kFloat), key = k.to(at::kFloat), value = v.to(at::kFloat);
  at::Tensor decay = g, step = beta.to(at::kFloat);
  if (mask.defined()) {
    const at::Tensor by_token = mask.logical_not().unsqueeze(-1);
    const at::Tensor by_element = by_token.unsqueeze(-1);
    query = query.masked_fill(by_element, 0);
    key = key.masked_fill(by_element, 0);
    value = value.masked_fill(by_element, 0);
    decay = decay.masked_fill(by_token, 0);
    step = step.masked_fill(by_token, 0);
  }
  if (qk_l2norm) {
    query = l2_normalised(query);
    key = l2_normalised(key);
  }
  const int64_t num_v_heads = v.size(2);
  return {spread_heads(query.mul(scale), num_v_heads, head_map),
          spread_heads(key, num_v_heads, head_map), value.transpose(1, 2), decay.transpose(1, 2),
          step.transpose(1, 2)};
}

at::Tensor one_token(const Inputs& in, const StatePair& state) {
  const at::Tensor q = in.q.select(2, 0).unsqueeze(-1), k = in.k.select(2, 0).unsqueeze(-1);
  const at::Tensor v = in.v.select(2, 0);
  const at::Tensor beta = in.beta.select(2, 0).unsqueeze(-1);
  if (!state.in.defined()) {
    at::Tensor written = state.out;
    written.copy_(k.mul(v.mul(beta).unsqueeze(-2)));
  } else {
    const at::Tensor decayed = state.in.mul(in.g.select(2, 0).exp().unsqueeze(-1).unsqueeze(-1));
    const at::Tensor delta = v.sub(decayed.mul(k).sum(-2)).mul_(beta);
    at::Tensor written = state.out;
    at::add_out(written, decayed, k.mul(delta.unsqueeze(-2)));
  }
  return state.out.mul(q).sum(-2).unsqueeze(2);
}

// The inverse of I + A for strictly lower triangular A (..., C, C), C a power of two: each round
// makes diagonal blocks of twice the size. Products only, and as stable as substitution.
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

at::Tensor chunked(const Inputs& in, const StatePair& state) {
  const int64_t batch = in.q.size(0), heads = in.q.size(1), tokens = in.q.size(2);
  const int64_t dk = in.q.size(3), dv = in.v.size(3), groups = batch * heads;
  const int64_t size = std::min<int64_t>(kChunk, std::bit_ceil(static_cast<uint64_t>(tokens)));
  const int64_t chunks = (tokens + size - 1) / size, pad = chunks * size - tokens;
  const auto split = [&](const at::Tensor& t) {  // -> (groups, chunks, size, D)
    return at::constant_pad_nd(t, {0, 0, 0, pad}).reshape({groups, chunks, size, t.size(-1)});
  };
  const at::Tensor q = split(in.q), k = split(in.k), v = split(in.v);
  const at::Tensor beta = split(in.beta.unsqueeze(-1));
  const at::Tensor g = split(in.g.unsqueeze(-1)).squeeze(-1);  // (groups, chunks, size)

  // D_ij = exp(g_{j+1} + .. + g_i): only the terms between are added. A difference of running sums
  // would lose them behind a large one, and exp(-sum) alone would overflow.
  const at::Tensor lower = at::ones({size, size}, g.options().dtype(at::kBool)).tril();
  const at::Tensor decay =
      g.unsqueeze(-1)
          .expand({groups, chunks, size, size})
          .masked_fill(lower.tril(-1).logical_not(), 0)
          .cumsum(-2)
          .masked_fill_(lower.logical_not(), -std::numeric_limits<float>::infinity())
          .exp_();
  const at::Tensor growth = g.cumsum(-1).exp().unsqueeze(-1);
  const at::Tensor k_beta = k.mul(beta), k_transposed = k.transpose(-1, -2);
  const at::Tensor inverse =
      unit_lower_inverse(at::matmul(k_beta, k_transposed).mul_(decay).tril(-1));
  const at::Tensor values = at::matmul(inverse, v.mul(beta));
  const at::Tensor keys = at::matmul(inverse, k_beta.mul(growth));
  const at::Tensor scores = at::matmul(q, k_transposed).mul_(decay);
  const at::Tensor q_grown = q.mul(growth);
  const at::Tensor to_the_end = decay.select(-2, size - 1).unsqueeze(-1);
  const at::Tensor k_left = k.mul(to_the_end).transpose(-1, -2);
  const at::Tensor chunk_decay = growth.narrow(-2, size - 1, 1);

  at::Tensor s = state.in.defined() ? state.in.reshape({groups, dk, dv})
                                    : at::zeros({groups, dk, dv}, q.options());
  const at::Tensor output = at::empty_like(v);
  for (int64_t i = 0; i < chunks; ++i) {
    const auto at_chunk = [i](const at::Tensor& t) { return t.select(1, i); };
    const at::Tensor fresh = at::baddbmm(at_chunk(values), at_chunk(keys), s, 1, -1);
    at_chunk(output).copy_(at::baddbmm(at::bmm(at_chunk(scores), fresh), at_chunk(q_grown), s));
    s = at::baddbmm(s.mul(at_chunk(chunk_decay)), at_chunk(k_left), fresh);
  }
  state.out.copy_(s.view({batch, heads, dk, dv}));
  return output.view({batch, heads, chunks * size, dv}).narrow(2, 0, tokens);
}

}  // namespace

at::Tensor gated_delta_rule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& g, const at::Tensor& beta, const at::Tensor& mask,
                            const StatePair& state, HeadMap head_map, double scale,
                            bool qk_l2norm) {
  const int64_t tokens = q.size(1);
  if (tokens == 0) {
    if (state.in.defined()) {
      state.out.copy_(state.in);
    } else {
      state.out.zero_();
    }
    return at::empty_like(v, v.options(), at::MemoryFormat::Contiguous);
  }
  const Inputs in = prepare(q, k, v, g, beta, mask, head_map, scale, qk_l2norm);
  const at::Tensor o = tokens == 1 ? one_token(in, state) : chunked(in, state);
  return o.transpose(1, 2).to(q.scalar_type()).contiguous();
}

}  // namespace tmf::stock
