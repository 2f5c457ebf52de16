#include "autograd/layer_backward.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

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

constexpr int64_t kTokens = 256;  // of a block of the gated norm, whose temporaries are wide

Tensor rows(const Tensor& t) { return t.reshape({-1, t.size(-1)}); }

// Which gradients are asked for, in the order of differentiable(); the results at the same places.
class Slots {
 public:
  Slots(const LayerArgs& a, const std::vector<bool>& needed)
      : tensors_(differentiable(a)), needed_(needed), grads_(tensors_.size()) {
    const size_t n = a.in_proj.size();
    conv_weight = 1 + n, A_log = 2 + n, dt_bias = 3 + n, norm_weight = 4 + n, out_proj = 5 + n;
    input_norm_weight = 6 + n, conv_state = 7 + n, recurrent_state = 8 + n;
  }

  bool wants(size_t slot) const { return needed_[slot] && tensors_[slot].defined(); }
  void set(size_t slot, const Tensor& grad) {
    if (wants(slot)) grads_[slot] = grad.to(tensors_[slot].scalar_type()).contiguous();
  }
  std::vector<Tensor> take() { return std::move(grads_); }

  static constexpr size_t hidden = 0, in_proj = 1;
  size_t conv_weight, A_log, dt_bias, norm_weight, out_proj;
  size_t input_norm_weight, conv_state, recurrent_state;

 private:
  std::vector<Tensor> tensors_;
  std::vector<bool> needed_;
  std::vector<Tensor> grads_;
};

// What the forward pass made, in the roundings of the dtype, and the gradients on the way back.
class LayerBackward {
 public:
  LayerBackward(const LayerArgs& a, const Stages& stages, const LayerGradientsIn& grads,
                const std::vector<bool>& needed)
      : a_(a),
        stages_(stages),
        in_(grads),
        slots_(a, needed),
        batch_(a.hidden.size(0)),
        tokens_(a.hidden.size(1)),
        wide_(a.hidden.options().dtype(stock::wide_type(a.hidden))) {}

  std::vector<Tensor> run() {
    if (a_.mask.defined()) dropped_ = a_.mask.logical_not().unsqueeze(-1);
    const Tensor masked = without_dropped(a_.hidden);
    const bool norm = a_.input_norm_weight.defined();
    x_ = norm ? stages_.rms_norm(masked, a_.input_norm_weight, a_.eps) : masked;
    p_ = project(x_, a_);
    mixed_ = convolved();

    // One buffer for the gradients of all projections: each stage leaves its own in its columns.
    const auto sizes = column_sizes();
    d_projected_ = at::empty({batch_, tokens_, sizes[0] + sizes[1] + 2 * a_.num_v_heads}, wide_);
    const auto parts = d_projected_.split_with_sizes(sizes, -1);
    d_ = {parts[0], parts[1], parts[2], parts[3]};
    middle();
    mixed_.reset();
    convolution();
    p_ = {};

    Tensor d_x = projection();
    if (!d_x.defined()) return slots_.take();
    if (norm) {
      const auto [d_input, d_weight] =
          rms_norm_backward(widened(masked), widened(a_.input_norm_weight), a_.eps, d_x);
      d_x = d_input;
      slots_.set(slots_.input_norm_weight, d_weight);
    }
    d_x = without_dropped(d_x);
    if (norm && in_.output.defined()) d_x = d_x.add(in_.output);  // the residual
    slots_.set(Slots::hidden, d_x);
    return slots_.take();
  }

 private:
  std::vector<int64_t> column_sizes() const {
    return {a_.conv_dim(), a_.value_dim(), a_.num_v_heads, a_.num_v_heads};
  }

  Tensor without_dropped(const Tensor& t) const {
    return dropped_.defined() ? t.masked_fill(dropped_, 0) : t;
  }

  static Tensor by_head(const Tensor& t, int64_t heads, int64_t dim) {
    return t.unflatten(-1, {heads, dim});
  }

  Tensor convolved() const {
    const int64_t width = a_.conv_state.defined() ? a_.conv_state.size(2) : a_.conv_weight.size(1);
    const Tensor unused = at::empty({batch_, a_.conv_dim(), width}, a_.hidden.options());
    return stages_.causal_conv1d(p_.qkv, a_.conv_weight, a_.mask, {a_.conv_state, unused}, true);
  }

  // q, k, v of (B, T, conv_dim)
  std::array<Tensor, 3> heads_of(const Tensor& t) const {
    const auto parts = t.split_with_sizes({a_.key_dim(), a_.key_dim(), a_.value_dim()}, -1);
    return {by_head(parts[0], a_.num_k_heads, a_.head_k_dim),
            by_head(parts[1], a_.num_k_heads, a_.head_k_dim),
            by_head(parts[2], a_.num_v_heads, a_.head_v_dim)};
  }

  // Output projection, gated norm, rule and gates: leaves the gradients of the convolution's output
  // and of z, b, a.
  void middle() {
    const auto [q, k, v] = heads_of(mixed_);
    const auto [g, beta] = stages_.gates(p_.a, p_.b, a_.A_log, a_.dt_bias);
    const RuleArgs rule{q,
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
    const Tensor d_o = in_.output.defined() ? output_side(rule) : no_output();
    const auto [d_q, d_k, d_v] = heads_of(d_.qkv);
    const Tensor d_g = at::empty(g.sizes(), wide_), d_beta = at::empty_like(d_g);
    slots_.set(slots_.recurrent_state,
               rule_backward(rule, d_o, in_.recurrent_state, {d_q, d_k, d_v, d_g, d_beta}));

    const GateGradients d = gates_backward(widened(p_.a), widened(p_.b), widened(a_.A_log),
                                           widened(a_.dt_bias), d_g, d_beta);
    d_.a.copy_(d.a);
    d_.b.copy_(d.b);
    slots_.set(slots_.A_log, d.A_log);
    slots_.set(slots_.dt_bias, d.dt_bias);
  }

  // -> gradient of the rule's output (B, T, Hv, Dv)
  Tensor output_side(const RuleArgs& rule) {
    const Tensor unused =
        at::empty({batch_, a_.num_v_heads, a_.head_v_dim, a_.head_k_dim}, wide_).transpose(-1, -2);
    const Tensor o = stages_.gated_delta_rule(rule.q, rule.k, rule.v, rule.g, rule.beta, a_.mask,
                                              {a_.recurrent_state, unused}, a_.head_map,
                                              *rule.scale, rule.qk_l2norm);
    const Tensor z = by_head(p_.z, a_.num_v_heads, a_.head_v_dim);
    const Tensor d_y = rows(widened(without_dropped(in_.output)));
    if (slots_.wants(slots_.out_proj)) {
      // A copy: the stage may write its input.
      const Tensor normed = stages_.gated_rms_norm(o.clone(), z, a_.norm_weight, a_.eps);
      const Tensor flat = normed.reshape({batch_ * tokens_, a_.value_dim()});
      slots_.set(slots_.out_proj, at::mm(d_y.t(), widened(flat)));
    }
    const Tensor d_normed =
        at::mm(d_y, widened(a_.out_proj[0])).view({batch_, tokens_, a_.num_v_heads, a_.head_v_dim});
    const Tensor d_z = by_head(d_.z, a_.num_v_heads, a_.head_v_dim);
    const Tensor weight = widened(a_.norm_weight), d_weight = at::zeros(weight.sizes(), wide_);
    for (int64_t t = 0; t < tokens_; t += kTokens) {
      const int64_t n = std::min(kTokens, tokens_ - t);
      const Tensor d_block = d_normed.narrow(1, t, n);
      const GatedNormGradients d = gated_rms_norm_backward(
          widened(o.narrow(1, t, n)), widened(z.narrow(1, t, n)), weight, a_.eps, d_block);
      d_block.copy_(d.o);
      d_z.narrow(1, t, n).copy_(d.z);
      d_weight.add_(d.weight);
    }
    slots_.set(slots_.norm_weight, d_weight);
    return d_normed;
  }

  Tensor no_output() {
    d_.z.zero_();
    slots_.set(slots_.out_proj, at::zeros(a_.out_proj[0].sizes(), wide_));
    slots_.set(slots_.norm_weight, at::zeros(a_.norm_weight.sizes(), wide_));
    return {};
  }

  // Gradient of the convolution's output -> of its input, in the same columns.
  void convolution() {
    const ConvArgs conv{
        p_.qkv.transpose(1, 2), a_.conv_weight, a_.conv_state,      a_.mask,
        /*silu=*/true,          a_.variant,     /*in_place=*/false, /*backward=*/true};
    const Tensor columns = d_.qkv.transpose(1, 2);
    const auto [d_weight, d_state] = conv_backward(conv, columns, in_.conv_state, columns);
    slots_.set(slots_.conv_weight, d_weight);
    slots_.set(slots_.conv_state, d_state);
  }

  // -> gradient of the projections' input (B, T, H), if that is asked for
  Tensor projection() {
    const Tensor x = rows(x_), d_all = rows(d_projected_);
    const bool back = slots_.wants(Slots::hidden) || slots_.wants(slots_.input_norm_weight);
    const Tensor d_x = back ? at::zeros(x.sizes(), wide_) : Tensor();
    int64_t column = 0;
    for (size_t i = 0; i < a_.in_proj.size(); ++i) {
      const Tensor& weight = a_.in_proj[i];
      const Tensor d = d_all.narrow(1, column, weight.size(0));
      column += weight.size(0);
      if (back) d_x.addmm_(d, widened(weight));
      if (slots_.wants(Slots::in_proj + i)) {
        slots_.set(Slots::in_proj + i, at::mm(d.t(), widened(x)));
      }
    }
    return back ? d_x.view(x_.sizes()) : d_x;
  }

  const LayerArgs& a_;
  const Stages& stages_;
  const LayerGradientsIn& in_;
  Slots slots_;
  int64_t batch_, tokens_;
  at::TensorOptions wide_;
  Tensor dropped_, x_, mixed_, d_projected_;
  Projected p_, d_;
};

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
  return LayerBackward(args, stages, grads, needed).run();
}

}  // namespace tmf::autograd
