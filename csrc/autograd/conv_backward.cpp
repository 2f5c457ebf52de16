#include "autograd/conv_backward.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <optional>

#include "stock/tools.h"

namespace tmf::autograd {
namespace {

using at::Tensor;
using stock::widened;

constexpr int64_t kBlock = int64_t{1} << 20;  // elements of a temporary, or one channel

// Where real tokens stand when the masked ones are taken out; nothing without a mask.
struct Places {
  explicit Places(const Tensor& mask) : dropped(mask.logical_not().unsqueeze(1)) {
    const stock::Compressed c = stock::compress(mask);
    source = c.source.unsqueeze(1);
    place = c.place.unsqueeze(1);
    count = c.count;
    beyond = at::arange(mask.size(1), count.options()).ge(count).unsqueeze(1);
  }

  // (B, C, T) in the call's order -> real tokens first, zeros behind them.
  Tensor compressed(const Tensor& t) const {
    return t.gather(2, source.expand_as(t)).masked_fill_(beyond, 0);
  }

  // The inverse: zeros at masked tokens.
  Tensor spread(const Tensor& t) const {
    return t.gather(2, place.expand_as(t)).masked_fill_(dropped, 0);
  }

  Tensor dropped, source, place, count, beyond;  // (B, 1, T), count (B, 1)
};

// Some channels of a call: everything (B, c, ..), the weight (c, K).
struct Block {
  Tensor x, weight, state, grad_output, grad_state;
};

struct BlockGradients {
  Tensor x, weight, state;
};

// y_t = silu(sum_j weight_j window_{first + j + t}), window the state before x.
BlockGradients block_backward(const Block& b, const std::optional<Places>& places, bool silu) {
  const int64_t tokens = b.x.size(2), width = b.state.size(2), taps = b.weight.size(1);
  const int64_t first = width - (taps - 1);
  const Tensor window = at::cat({b.state, places ? places->compressed(b.x) : b.x}, 2);
  const auto seen_by_tap = [&](const Tensor& t, int64_t j) {
    return t.narrow(2, first + j, tokens);
  };
  const auto tap = [&](int64_t j) { return b.weight.narrow(1, j, 1); };

  const Tensor d_window = at::zeros_like(window), d_weight = at::zeros_like(b.weight);
  if (b.grad_output.defined()) {
    Tensor d_sum = places ? places->compressed(b.grad_output) : b.grad_output;
    if (silu) {
      Tensor sum = at::zeros_like(b.x);
      for (int64_t j = 0; j < taps; ++j) sum.addcmul_(seen_by_tap(window, j), tap(j));
      const Tensor s = at::sigmoid(sum);
      d_sum = d_sum.mul(sum.mul_(s.neg().add_(1)).add_(1).mul_(s));
    }
    for (int64_t j = 0; j < taps; ++j) {
      seen_by_tap(d_window, j).addcmul_(d_sum, tap(j));
      d_weight.select(1, j).copy_(d_sum.mul(seen_by_tap(window, j)).sum(at::IntArrayRef{0, 2}));
    }
  }
  if (b.grad_state.defined()) {
    if (places) {
      const Tensor last = at::arange(width, places->count.options()).add(places->count);
      d_window.scatter_add_(2, last.unsqueeze(1).expand_as(b.grad_state), b.grad_state);
    } else {
      d_window.narrow(2, tokens, width).add_(b.grad_state);
    }
  }
  const Tensor d_x = d_window.narrow(2, width, tokens);
  return {places ? places->spread(d_x) : d_x, d_weight, d_window.narrow(2, 0, width)};
}

}  // namespace

std::tuple<Tensor, Tensor> conv_backward(const ConvArgs& a, const Tensor& grad_output,
                                         const Tensor& grad_state, const Tensor& grad_x) {
  const int64_t batch = a.x.size(0), channels = a.x.size(1), tokens = a.x.size(2);
  const int64_t width = a.state.defined() ? a.state.size(2) : a.weight.size(1);
  const auto options = a.x.options().dtype(stock::wide_type(a.x));
  const Tensor d_weight = at::empty(a.weight.sizes(), options);
  const Tensor d_state = at::empty({batch, channels, width}, options);
  std::optional<Places> places;
  if (a.mask.defined() && tokens > 0) places.emplace(a.mask);

  const int64_t step = std::max<int64_t>(1, kBlock / std::max<int64_t>(1, batch * tokens));
  for (int64_t c = 0; c < channels; c += step) {
    const int64_t n = std::min(step, channels - c);
    const auto some = [&](const Tensor& t) {
      return t.defined() ? widened(t.narrow(1, c, n)) : Tensor();
    };
    const Tensor state = a.state.defined() ? some(a.state) : at::zeros({batch, n, width}, options);
    const BlockGradients d = block_backward(
        {some(a.x), widened(a.weight.narrow(0, c, n)), state, some(grad_output), some(grad_state)},
        places, a.silu);
    grad_x.narrow(1, c, n).copy_(d.x);
    d_weight.narrow(0, c, n).copy_(d.weight);
    d_state.narrow(1, c, n).copy_(d.state);
  }
  return {d_weight, d_state};
}

}  // namespace tmf::autograd
