#include "stock/rule.h"

#include <ATen/ops/add.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>

#include "stock/tools.h"

namespace tmf::stock {
namespace {

// Everything wide and head-major; masked tokens changed into tokens that do nothing.
struct Inputs {
  at::Tensor q, k, v;  // (B, Hv, T, Dk) twice, (B, Hv, T, Dv)
  at::Tensor g, beta;  // (B, Hv, T)
};

at::Tensor l2_normalised(const at::Tensor& x) {
  return x.mul(at::rsqrt(x.square().sum(-1, /*keepdim=*/true).add_(kL2NormEps)));
}

Inputs prepare(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& g,
               const at::Tensor& beta, const at::Tensor& mask, HeadMap head_map, double scale,
               bool qk_l2norm) {
  at::Tensor query = widened(q), key = widened(k), value = widened(v);
  at::Tensor decay = g, step = widened(beta);
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
  const bool tiled = head_map == HeadMap::tiled;
  return {spread_heads(query.mul(scale), num_v_heads, tiled), spread_heads(key, num_v_heads, tiled),
          value.transpose(1, 2), decay.transpose(1, 2), step.transpose(1, 2)};
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

at::Tensor chunked(const Inputs& in, const StatePair& state) {
  const int64_t batch = in.q.size(0), heads = in.q.size(1), tokens = in.q.size(2);
  const int64_t dk = in.q.size(3), dv = in.v.size(3), groups = batch * heads;
  const int64_t size = chunk_size(tokens);
  const int64_t chunks = (tokens + size - 1) / size, pad = chunks * size - tokens;
  const auto split = [&](const at::Tensor& t) {  // -> (groups, chunks, size, D)
    return at::constant_pad_nd(t, {0, 0, 0, pad}).reshape({groups, chunks, size, t.size(-1)});
  };
  const at::Tensor q = split(in.q), k = split(in.k), v = split(in.v);
  const at::Tensor beta = split(in.beta.unsqueeze(-1));
  const at::Tensor g = split(in.g.unsqueeze(-1)).squeeze(-1);  // (groups, chunks, size)

  const at::Tensor decay = decay_between(g);
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
