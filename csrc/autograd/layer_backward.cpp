#include "autograd/layer_backward.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "autograd/conv_backward.h"
#include "autograd/norms_backward.h"
#include "autograd/rule_backward.h"
#include "layer.h"
#include "stock/tools.h"

namespace tmf::autograd {
namespace {

using at::Tensor;
using stock::widened;

constexpr int64_t kTokens = 256;   // of a block of the output side, whose temporaries are wide
constexpr int64_t kSegment = 512;  // rows of a segment, at least one chunk of each sequence

Tensor rows(const Tensor& t) { return t.reshape({-1, t.size(-1)}); }

// The gradients of differentiable(), as sums over the segments, wide.
class Gradients {
 public:
  Gradients(const LayerArgs& a, const std::vector<bool>& needed)
      : tensors_(differentiable(a)), needed_(needed), sums_(tensors_.size()) {
    const size_t n = a.in_proj.size();
    conv_weight = 1 + n, A_log = 2 + n, dt_bias = 3 + n, norm_weight = 4 + n, out_proj = 5 + n;
    input_norm_weight = 6 + n, conv_state = 7 + n, recurrent_state = 8 + n;
  }

  bool wants(size_t slot) const { return needed_[slot] && tensors_[slot].defined(); }

  // Zeros at first; only of what is wanted.
  Tensor& sum(size_t slot) {
    const Tensor& t = tensors_[slot];
    if (!sums_[slot].defined()) {
      sums_[slot] = at::zeros(t.sizes(), t.options().dtype(stock::wide_type(t)));
    }
    return sums_[slot];
  }

  void add(size_t slot, const Tensor& grad) {
    if (wants(slot)) sum(slot).add_(grad);
  }

  std::vector<Tensor> take() {
    for (size_t i = 0; i < sums_.size(); ++i) {
      if (wants(i)) sums_[i] = sum(i).to(tensors_[i].scalar_type());
    }
    return std::move(sums_);
  }

  static constexpr size_t hidden = 0, in_proj = 1;
  size_t conv_weight, A_log, dt_bias, norm_weight, out_proj;
  size_t input_norm_weight, conv_state, recurrent_state;

 private:
  std::vector<Tensor> tensors_;
  std::vector<bool> needed_;
  std::vector<Tensor> sums_;
};

// The layer up to the rule on some consecutive tokens, in the roundings of the dtype.
class Segment {
 public:
  Segment(const LayerArgs& a, const Stages& stages)
      : a_(a),
        stages_(stages),
        batch_(a.hidden.size(0)),
        tokens_(a.hidden.size(1)),
        wide_(a.hidden.options().dtype(stock::wide_type(a.hidden))) {
    if (a_.mask.defined()) dropped_ = a_.mask.logical_not().unsqueeze(-1);
    masked_ = without_dropped(a_.hidden);
    const bool norm = a_.input_norm_weight.defined();
    x_ = norm ? stages_.rms_norm(masked_, a_.input_norm_weight, a_.eps) : masked_;
    p_ = project(x_, a_, stock_stages());
  }

  // -> the states after the segment
  std::array<Tensor, 2> states() const {
    const auto [mixed, conv] = convolved();
    const auto [g, beta] = stages_.gates(p_.a, p_.b, a_.A_log, a_.dt_bias);
    return {conv, ruled(rule_of(mixed, g, beta))[1]};
  }

  // Adds to `out`, writes `grad_hidden`; -> the gradients of the states before the segment.
  std::array<Tensor, 2> backward(const LayerGradientsIn& grads, Gradients& out,
                                 const Tensor& grad_hidden) {
    const Tensor d_recurrent = middle(convolved()[0], grads, out);
    const Tensor d_conv = convolution(grads.conv_state, out);
    p_ = {};
    input_side(grads.output, out, grad_hidden);
    return {d_conv, d_recurrent};
  }

 private:
  Tensor without_dropped(const Tensor& t) const {
    return dropped_.defined() ? t.masked_fill(dropped_, 0) : t;
  }

  static Tensor by_head(const Tensor& t, int64_t heads, int64_t dim) {
    return t.unflatten(-1, {heads, dim});
  }

  // -> the convolution's output (B, T, conv_dim) and the state after it
  std::array<Tensor, 2> convolved() const {
    const int64_t width = a_.conv_state.defined() ? a_.conv_state.size(2) : a_.conv_weight.size(1);
    const Tensor after = at::empty({batch_, a_.conv_dim(), width}, a_.hidden.options());
    return {stages_.causal_conv1d(p_.qkv, a_.conv_weight, a_.mask, {a_.conv_state, after}, true),
            after};
  }

  // -> the rule's output (B, T, Hv, Dv) and the state after it
  std::array<Tensor, 2> ruled(const RuleArgs& r) const {
    const Tensor after =
        at::empty({batch_, a_.num_v_heads, a_.head_v_dim, a_.head_k_dim}, wide_).transpose(-1, -2);
    return {stages_.gated_delta_rule(r.q, r.k, r.v, r.g, r.beta, r.mask, {r.state, after},
                                     r.head_map, *r.scale, r.qk_l2norm),
            after};
  }

  // q, k, v of (B, T, conv_dim)
  std::array<Tensor, 3> heads_of(const Tensor& t) const {
    const auto parts = t.split_with_sizes({a_.key_dim(), a_.key_dim(), a_.value_dim()}, -1);
    return {by_head(parts[0], a_.num_k_heads, a_.head_k_dim),
            by_head(parts[1], a_.num_k_heads, a_.head_k_dim),
            by_head(parts[2], a_.num_v_heads, a_.head_v_dim)};
  }

  RuleArgs rule_of(const Tensor& mixed, const Tensor& g, const Tensor& beta) const {
    const auto [q, k, v] = heads_of(mixed);
    return {q,
            k,
            v,
            g,
            beta,
            a_.recurrent_state,
            a_.mask,
            a_.head_map,
            1.0 / std::sqrt(static_cast<double>(a_.head_k_dim)),
            /*qk_l2norm=*/true,
            a_.variant,
            /*in_place=*/false,
            /*backward=*/true};
  }

  // Output projection, gated norm, rule and gates: from the convolution's output, whose memory is
  // used again, to its gradient and those of z, b, a; -> the gradient of the recurrent state.
  Tensor middle(Tensor mixed, const LayerGradientsIn& grads, Gradients& out) {
    const auto [g, beta] = stages_.gates(p_.a, p_.b, a_.A_log, a_.dt_bias);
    d_.z = at::zeros(p_.z.sizes(), wide_);
    Tensor d_o;
    if (grads.output.defined()) d_o = output_side(rule_of(mixed, g, beta), grads.output, out);
    p_.z.reset();
    d_.qkv = widened(mixed);
    mixed.reset();
    const RuleArgs rule = rule_of(d_.qkv, g, beta);
    const Tensor d_g = at::empty(g.sizes(), wide_), d_beta = at::empty_like(d_g);
    const Tensor d_state =
        rule_backward(rule, d_o, grads.recurrent_state, {rule.q, rule.k, rule.v, d_g, d_beta});

    const GateGradients d = gates_backward(widened(p_.a), widened(p_.b), widened(a_.A_log),
                                           widened(a_.dt_bias), d_g, d_beta);
    d_.a = d.a;
    d_.b = d.b;
    out.add(out.A_log, d.A_log);
    out.add(out.dt_bias, d.dt_bias);
    return d_state;
  }

  // -> gradient of the rule's output (B, T, Hv, Dv)
  Tensor output_side(const RuleArgs& rule, const Tensor& grad_output, Gradients& out) {
    const Tensor o = ruled(rule)[0];
    const Tensor z = by_head(p_.z, a_.num_v_heads, a_.head_v_dim);
    const Tensor d_z = by_head(d_.z, a_.num_v_heads, a_.head_v_dim);
    const Tensor d_o = at::empty(o.sizes(), wide_);
    const Tensor out_proj = widened(a_.out_proj[0]), weight = widened(a_.norm_weight);
    for (int64_t t = 0; t < tokens_; t += kTokens) {
      const auto block = [&](const Tensor& x) {
        return x.narrow(1, t, std::min(kTokens, tokens_ - t));
      };
      Tensor d_y = widened(block(grad_output));
      if (dropped_.defined()) d_y = d_y.masked_fill(block(dropped_), 0);
      d_y = rows(d_y);
      if (out.wants(out.out_proj)) {
        // A copy: the stage may write its input.
        const Tensor normed = stages_.gated_rms_norm(block(o).clone(at::MemoryFormat::Contiguous),
                                                     block(z), a_.norm_weight, a_.eps);
        out.sum(out.out_proj).addmm_(d_y.t(), widened(normed.reshape({-1, a_.value_dim()})));
      }
      const Tensor d_normed = at::mm(d_y, out_proj).view(block(o).sizes());
      const GatedNormGradients d =
          gated_rms_norm_backward(widened(block(o)), widened(block(z)), weight, a_.eps, d_normed);
      block(d_o).copy_(d.o);
      block(d_z).copy_(d.z);
      out.add(out.norm_weight, d.weight);
    }
    return d_o;
  }

  // Gradient of the convolution's output -> of its input, in the same memory; -> of its state.
  Tensor convolution(const Tensor& grad_state, Gradients& out) {
    const ConvArgs conv{
        p_.qkv.transpose(1, 2), a_.conv_weight, a_.conv_state,      a_.mask,
        /*silu=*/true,          a_.variant,     /*in_place=*/false, /*backward=*/true};
    const Tensor columns = d_.qkv.transpose(1, 2);
    const auto [d_weight, d_state] = conv_backward(conv, columns, grad_state, columns);
    out.add(out.conv_weight, d_weight);
    return d_state;
  }

  // Input projection, norm and residual.
  void input_side(const Tensor& grad_output, Gradients& out, const Tensor& grad_hidden) {
    Tensor d_x = projection(out);
    if (!d_x.defined()) return;
    const bool norm = a_.input_norm_weight.defined();
    if (norm) {
      const auto [d_input, d_weight] =
          rms_norm_backward(widened(masked_), widened(a_.input_norm_weight), a_.eps, d_x);
      d_x = d_input;
      out.add(out.input_norm_weight, d_weight);
    }
    if (!grad_hidden.defined()) return;
    d_x = without_dropped(d_x);
    if (norm && grad_output.defined()) d_x = d_x.add(grad_output);
    grad_hidden.copy_(d_x);
  }

  // -> gradient of the projections' input (B, T, H), if something asks for it
  Tensor projection(Gradients& out) {
    const Tensor x = rows(widened(x_));
    const bool back = out.wants(out.hidden) || out.wants(out.input_norm_weight);
    const Tensor d_x = back ? at::zeros(x.sizes(), wide_) : Tensor();
    const bool joined = a_.in_proj.size() == 1;
    int64_t row = 0;
    size_t part = 0;
    for (const Tensor* gradient : {&d_.qkv, &d_.z, &d_.b, &d_.a}) {
      const Tensor d = rows(*gradient);
      const size_t i = joined ? 0 : part++, slot = Gradients::in_proj + i;
      const auto own_rows = [&](const Tensor& t) {
        return joined ? t.narrow(0, row, d.size(1)) : t;
      };
      if (back) d_x.addmm_(d, widened(own_rows(a_.in_proj[i])));
      if (out.wants(slot)) own_rows(out.sum(slot)).addmm_(d.t(), x);
      row += d.size(1);
    }
    return back ? d_x.view(x_.sizes()) : d_x;
  }

  const LayerArgs& a_;
  const Stages& stages_;
  int64_t batch_, tokens_;
  at::TensorOptions wide_;
  Tensor dropped_, masked_, x_;
  Projected p_, d_;  // the projections, and their gradients
};

Tensor tokens_of(const Tensor& t, int64_t first, int64_t count) {
  return t.defined() ? t.narrow(1, first, count) : t;
}

// The call cut into segments, each with the states before it.
std::vector<LayerArgs> segments_of(const LayerArgs& a, const Stages& stages) {
  const int64_t tokens = a.hidden.size(1), batch = std::max<int64_t>(1, a.hidden.size(0));
  const int64_t chunks = std::max<int64_t>(1, kSegment / batch / stock::kChunk);
  const int64_t length = chunks * stock::kChunk;
  std::vector<LayerArgs> all;
  LayerArgs next = a;
  for (int64_t t = 0; t == 0 || t < tokens; t += length) {
    const int64_t count = std::min(length, tokens - t);
    next.hidden = tokens_of(a.hidden, t, count);
    next.mask = tokens_of(a.mask, t, count);
    all.push_back(next);
    if (t + count < tokens) {
      const auto [conv, recurrent] = Segment(next, stages).states();
      next.conv_state = conv;
      next.recurrent_state = recurrent;
    }
  }
  return all;
}

}  // namespace

std::vector<Tensor> differentiable(const LayerArgs& a) {
  std::vector<Tensor> all{a.hidden};
  all.insert(all.end(), a.in_proj.begin(), a.in_proj.end());
  all.insert(all.end(), {a.conv_weight, a.A_log, a.dt_bias, a.norm_weight});
  all.insert(all.end(), a.out_proj.begin(), a.out_proj.end());
  all.insert(all.end(), {a.input_norm_weight, a.conv_state, a.recurrent_state});
  return all;
}

std::vector<Tensor> layer_backward(const LayerArgs& args, const Stages& stages,
                                   const LayerGradientsIn& grads, const std::vector<bool>& needed) {
  Gradients out(args, needed);
  std::vector<LayerArgs> segments = segments_of(args, stages);
  const Tensor d_hidden = out.wants(out.hidden) ? out.sum(out.hidden) : Tensor();
  LayerGradientsIn after = grads;
  for (int64_t end = args.hidden.size(1); !segments.empty(); segments.pop_back()) {
    const LayerArgs& s = segments.back();
    const int64_t count = s.hidden.size(1), first = end - count;
    after.output = tokens_of(grads.output, first, count);
    const auto [conv, recurrent] =
        Segment(s, stages).backward(after, out, tokens_of(d_hidden, first, count));
    after.conv_state = conv;
    after.recurrent_state = recurrent;
    end = first;
  }
  out.add(out.conv_state, after.conv_state);
  out.add(out.recurrent_state, after.recurrent_state);
  return out.take();
}

}  // namespace tmf::autograd
