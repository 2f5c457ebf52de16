#include "autograd/rule_backward.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "stock/tools.h"

namespace tmf::autograd {
namespace {

using at::matmul;
using at::Tensor;
using stock::kL2NormEps, stock::widened;

constexpr int64_t kSpan = 8;  // chunks between two states that are kept for the way back

Tensor transposed(const Tensor& t) { return t.transpose(-1, -2); }
Tensor sum_last(const Tensor& t) { return t.sum(-1, /*keepdim=*/true); }

// (N, C, ..) -> sums over i >= t, and over i < t, for each t.
Tensor sum_from(const Tensor& t) { return t.flip(1).cumsum(1).flip(1); }
Tensor sum_before(const Tensor& t) {
  return at::constant_pad_nd(t.narrow(1, 0, t.size(1) - 1), {0, 0, 1, 0}).cumsum(1);
}

// One chunk as the formulas read it: N = B Hv sequences of C tokens.
struct Chunk {
  Tensor q, k, v;  // (N, C, Dk) twice, (N, C, Dv); q scaled
  Tensor beta;     // (N, C, 1)
  Tensor growth;   // (N, C, 1): exp(g_0 + .. + g_i), what is left of the state at token i
  Tensor left;     // (N, C, 1): exp(g_{i+1} + .. + g_last), what is left of token i at the end
  Tensor total;    // (N, 1, 1): exp of the sum of g
  Tensor decay;    // (N, C, C): exp(g_{j+1} + .. + g_i), zero for j > i
  Tensor inverse;  // (N, C, C): of I + tril(beta k k^T decay, -1)
};

Chunk make_chunk(Tensor q, Tensor k, Tensor v, const Tensor& g, Tensor beta) {
  const Tensor decay = stock::decay_between(g.squeeze(-1));
  const Tensor growth = g.cumsum(1).exp();
  const int64_t last = g.size(1) - 1;
  const Tensor A = matmul(k.mul(beta), transposed(k)).mul_(decay).tril(-1);
  return {std::move(q),
          std::move(k),
          std::move(v),
          std::move(beta),
          growth,
          decay.select(1, last).unsqueeze(-1),
          growth.narrow(1, last, 1),
          decay,
          stock::unit_lower_inverse(A)};
}

// What the tokens of a chunk do, given the state before it, (N, Dk, Dv).
struct Update {
  Tensor read;     // (N, C, Dv): k S, what the state held for the keys, before its decay
  Tensor missing;  // (N, C, Dv): v - growth read
  Tensor written;  // (N, C, Dv): the values that the tokens write
};

Update update_of(const Chunk& c, const Tensor& state) {
  const Tensor read = matmul(c.k, state);
  const Tensor missing = c.v.sub(read.mul(c.growth));
  return {read, missing, matmul(c.inverse, missing.mul(c.beta))};
}

Tensor next_state(const Chunk& c, const Tensor& state) {
  const Tensor written = update_of(c, state).written;
  return matmul(transposed(c.k.mul(c.left)), written).add_(state.mul(c.total));
}

// Gradients of one chunk, (N, C, ..), and of the state before it.
struct ChunkGradients {
  Tensor q, k, v, g, beta, state;
};

//   written = inverse (beta missing)                    output = growth q S + scores written
//   scores = (q k^T) decay                              S' = total S + (left k)^T written
// d_x is the gradient of x; d_scores and d_A are those of q k^T and of beta k k^T.
ChunkGradients chunk_backward(const Chunk& c, const Tensor& state, const Tensor& d_output,
                              const Tensor& d_next) {
  const Update u = update_of(c, state);
  const Tensor qk = matmul(c.q, transposed(c.k)), kk = matmul(c.k, transposed(c.k));
  const Tensor d_written =
      matmul(transposed(qk.mul(c.decay)), d_output).add_(matmul(c.k.mul(c.left), d_next));
  const Tensor d_right = matmul(transposed(c.inverse), d_written);
  const Tensor d_scores = matmul(d_output, transposed(u.written)).mul_(c.decay);
  const Tensor d_A = matmul(d_right, transposed(u.written)).mul_(c.decay).neg_().tril_(-1);
  const Tensor d_kk = d_A.mul(c.beta);
  const Tensor d_missing = d_right.mul(c.beta);
  const Tensor d_read = d_missing.mul(c.growth).neg_();
  const Tensor d_grown = matmul(d_output, transposed(state)).mul_(c.growth);
  const Tensor d_left_k = matmul(u.written, transposed(d_next)).mul_(c.left);

  const Tensor d_q = matmul(d_scores, c.k).add_(d_grown);
  const Tensor d_k = matmul(transposed(d_scores), c.q)
                         .add_(matmul(d_kk.add(transposed(d_kk)), c.k))
                         .add_(matmul(d_read, transposed(state)))
                         .add_(d_left_k);
  const Tensor d_beta = sum_last(d_right.mul(u.missing)).add_(sum_last(d_A.mul(kk)));

  // A gate is in every product that spans it: with every pair i >= t > j, in growth from t on, in
  // left before t. Sums of those terms alone, so that a small gradient is no difference of large.
  const Tensor pairs = sum_from(d_scores.mul(qk).add_(d_kk.mul(kk))).tril(-1);
  const Tensor of_growth = sum_last(c.q.mul(d_grown)).add_(sum_last(d_read.mul(u.read)));
  const Tensor of_total = d_next.mul(state).sum({1, 2}, /*keepdim=*/true).mul_(c.total);
  const Tensor d_g = sum_last(pairs)
                         .add_(sum_from(of_growth))
                         .add_(sum_before(sum_last(d_left_k.mul(c.k))))
                         .add_(of_total);

  const Tensor d_state = matmul(transposed(c.q.mul(c.growth)), d_output)
                             .add_(matmul(transposed(c.k), d_read))
                             .add_(d_next.mul(c.total));
  return {d_q, d_k, d_missing, d_g, d_beta, d_state};
}

// The tensors of a call cut into chunks, and the gradients put back.
class Chunks {
 public:
  explicit Chunks(const RuleArgs& a)
      : a_(a),
        batch_(a.q.size(0)),
        tokens_(a.q.size(1)),
        heads_(a.v.size(2)),
        size_(stock::chunk_size(tokens_)),
        scale_(a.scale.value_or(1.0 / std::sqrt(static_cast<double>(a.q.size(3))))),
        tiled_(a.head_map == HeadMap::tiled) {}

  int64_t count() const { return (tokens_ + size_ - 1) / size_; }

  Chunk at(int64_t i) const {
    Tensor q = tokens_of(a_.q, i), k = tokens_of(a_.k, i);
    if (a_.qk_l2norm) {
      q = q.mul(inverse_norm(q));
      k = k.mul(inverse_norm(k));
    }
    return make_chunk(by_sequence(q.mul(scale_)), by_sequence(k), by_sequence(tokens_of(a_.v, i)),
                      by_sequence(tokens_of(a_.g, i).unsqueeze(-1)),
                      by_sequence(tokens_of(a_.beta, i).unsqueeze(-1)));
  }

  // (B, T, Hv, Dv) -> (N, C, Dv) of chunk i; zeros if undefined.
  Tensor output_gradient(const Tensor& grad_output, int64_t i) const {
    if (grad_output.defined()) return by_sequence(tokens_of(grad_output, i));
    return at::zeros({batch_ * heads_, size_, a_.v.size(3)},
                     a_.q.options().dtype(stock::wide_type(a_.q)));
  }

  void store(const ChunkGradients& d, int64_t i, const RuleGradients& out) const {
    store_keys(d.q.mul(scale_), a_.q, i, out.q);
    store_keys(d.k, a_.k, i, out.k);
    put(by_token(d.v), i, out.v);
    put(by_token(d.g).squeeze(-1), i, out.g);
    put(by_token(d.beta).squeeze(-1), i, out.beta);
  }

 private:
  int64_t length(int64_t i) const { return std::min(size_, tokens_ - i * size_); }

  // (B, T, ..) -> (B, n, ..) of chunk i, wide, masked tokens zero.
  Tensor tokens_of(const Tensor& t, int64_t i) const {
    return unmasked(widened(t.narrow(1, i * size_, length(i))), i);
  }

  Tensor unmasked(const Tensor& t, int64_t i) const {
    if (!a_.mask.defined()) return t;
    Tensor masked = a_.mask.narrow(1, i * size_, length(i)).logical_not();
    while (masked.dim() < t.dim()) masked = masked.unsqueeze(-1);
    return t.masked_fill(masked, 0);
  }

  static Tensor inverse_norm(const Tensor& x) {
    return at::rsqrt(sum_last(x.square()).add_(kL2NormEps));
  }

  // (B, n, H, D) -> (N, C, D): tokens that are added are zero, which do nothing.
  Tensor by_sequence(const Tensor& t) const {
    const Tensor spread = stock::spread_heads(t, heads_, tiled_);
    return at::constant_pad_nd(spread, {0, 0, 0, size_ - t.size(1)})
        .reshape({batch_ * heads_, size_, t.size(3)});
  }

  // (N, C, D) -> (B, C, Hv, D)
  Tensor by_token(const Tensor& t) const {
    return t.view({batch_, heads_, size_, t.size(2)}).transpose(1, 2);
  }

  // A gradient for each value head, summed into those of the key heads, back through the norm.
  void store_keys(const Tensor& d, const Tensor& input, int64_t i, const Tensor& out) const {
    const int64_t key_heads = input.size(2), repeat = heads_ / key_heads;
    Tensor grad = by_token(d);
    if (repeat > 1) {
      grad = tiled_ ? grad.unflatten(2, {repeat, key_heads}).sum(2)
                    : grad.unflatten(2, {key_heads, repeat}).sum(3);
    }
    grad = grad.narrow(1, 0, length(i));
    if (a_.qk_l2norm) {
      const Tensor x = tokens_of(input, i), r = inverse_norm(x), unit = x.mul(r);
      grad = grad.sub(unit.mul(sum_last(unit.mul(grad)))).mul_(r);
    }
    put(grad, i, out);
  }

  void put(const Tensor& grad, int64_t i, const Tensor& out) const {
    out.narrow(1, i * size_, length(i)).copy_(unmasked(grad.narrow(1, 0, length(i)), i));
  }

  const RuleArgs& a_;
  int64_t batch_, tokens_, heads_, size_;
  double scale_;
  bool tiled_;
};

}  // namespace

Tensor rule_backward(const RuleArgs& a, const Tensor& grad_output, const Tensor& grad_state,
                     const RuleGradients& out) {
  const int64_t batch = a.q.size(0), heads = a.v.size(2), dk = a.q.size(3), dv = a.v.size(3);
  const auto options = a.q.options().dtype(stock::wide_type(a.q));
  const std::vector<int64_t> by_sequence{batch * heads, dk, dv};
  const auto or_zeros = [&](const Tensor& state) {
    return state.defined() ? widened(state).reshape(by_sequence) : at::zeros(by_sequence, options);
  };
  Tensor d_state = or_zeros(grad_state);
  if (a.q.size(1) > 0) {
    const Chunks chunks(a);
    // The state before each span, then before each chunk of the span that is on its way back.
    const int64_t spans = (chunks.count() + kSpan - 1) / kSpan;
    const Tensor of_span = at::empty({spans, batch * heads, dk, dv}, options);
    const Tensor of_chunk = at::empty({kSpan, batch * heads, dk, dv}, options);
    of_span[0].copy_(or_zeros(a.state));
    for (int64_t s = 0; s + 1 < spans; ++s) {
      Tensor state = of_span[s];
      for (int64_t i = 0; i < kSpan; ++i) state = next_state(chunks.at(s * kSpan + i), state);
      of_span[s + 1].copy_(state);
    }
    for (int64_t s = spans - 1; s >= 0; --s) {
      const int64_t first = s * kSpan, count = std::min(kSpan, chunks.count() - first);
      of_chunk[0].copy_(of_span[s]);
      for (int64_t i = 0; i + 1 < count; ++i) {
        of_chunk[i + 1].copy_(next_state(chunks.at(first + i), of_chunk[i]));
      }
      for (int64_t i = count - 1; i >= 0; --i) {
        const Tensor d_output = chunks.output_gradient(grad_output, first + i);
        const ChunkGradients d =
            chunk_backward(chunks.at(first + i), of_chunk[i], d_output, d_state);
        chunks.store(d, first + i, out);
        d_state = d.state;
      }
    }
  }
  const Tensor before = d_state.view({batch, heads, dk, dv});
  return a.q.size(1) > 0 ? before : before.clone();  // not the gradient that came
}

}  // namespace tmf::autograd
