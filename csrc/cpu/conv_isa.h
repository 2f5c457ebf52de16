// The causal convolution by tiles: tokens by kConvChannels channels, in fp32 scratch, with the K -
// 1 inputs before.
#pragma once

#include "cpu/rows_isa.h"
#include "cpu/simd.h"

namespace tmf::cpu::TMF_ISA {

constexpr int kConvTokens = 32;
constexpr int kConvHistory = 3;

// Channels [first, first + n) of one row of the batch.
struct ConvItem {
  int64_t batch, first, n, count;  // count: real tokens
};

// How the channels of one token, or the tokens of one channel, lie in memory.
TMF_INLINE bool by_channel(const View& x) { return x.stride[2] == 1; }
TMF_INLINE bool by_time(const View& x, const Tokens& tokens) {
  return x.stride[1] == 1 && tokens.index == nullptr;
}

// Channels of one token; strided ones are collected first, so that they are converted as vectors.
template <class T>
TMF_INLINE void load_channels(const typename T::type* x, int64_t n, int64_t stride, float* out) {
  typename T::type staged[kConvChannels];
  if (stride != 1 || n % kLanes != 0) {
    for (int64_t c = 0; c < n; ++c) staged[c] = x[c * stride];
    for (int64_t c = n; c % kLanes != 0; ++c) staged[c] = 0;
    x = staged;
  }
  for (int64_t c = 0; c < n; c += kLanes) store(out + c, T::load(x + c));
}

template <class T>
TMF_INLINE void store_channels(const float* x, int64_t n, int64_t stride, typename T::type* out) {
  if (stride == 1 && n % kLanes == 0) {
    for (int64_t c = 0; c < n; c += kLanes) T::store(out + c, load(x + c));
    return;
  }
  typename T::type staged[kConvChannels];
  for (int64_t c = 0; c < n; c += kLanes) T::store(staged + c, load(x + c));
  for (int64_t c = 0; c < n; ++c) out[c * stride] = staged[c];
}

// Input number n of the row's real tokens; before the first, from the state, or zero.
template <class T>
TMF_INLINE void load_input(const ConvArgs& a, const ConvItem& item, int64_t n, float* out) {
  if (n >= 0) {
    const int64_t t = token_at(a.tokens, item.batch, n);
    load_channels<T>(row_of<T>(a.x, item.batch, t, item.first), item.n, a.x.stride[2], out);
  } else if (a.state_in.data != nullptr && a.width_in + n >= 0) {
    load_channels<T>(row_of<T>(a.state_in, item.batch, item.first, a.width_in + n), item.n,
                     a.state_in.stride[1], out);
  } else {
    for (int64_t c = 0; c < item.n; c += kLanes) store(out + c, vf{});
  }
}

// A square of kLanes tokens by kLanes channels whose tokens are adjacent in memory.
template <class T>
TMF_INLINE void load_square(const typename T::type* x, int64_t channel_stride, float* out) {
  vf rows[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) rows[i] = T::load(x + i * channel_stride);
  transpose(rows);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) store(out + i * kConvChannels, rows[i]);
}

template <class T>
TMF_INLINE void store_square(const float* x, int64_t channel_stride, typename T::type* out) {
  vf rows[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) rows[i] = load(x + i * kConvChannels);
  transpose(rows);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) T::store(out + i * channel_stride, rows[i]);
}

// Inputs first_token .. first_token + tokens into tile [tokens][kConvChannels].
template <class T>
TMF_INLINE void load_inputs(const ConvArgs& a, const ConvItem& item, int64_t first_token,
                            int64_t tokens, float* tile) {
  int64_t i = 0;
  if (!by_channel(a.x) && by_time(a.x, a.tokens) && item.n % kLanes == 0) {
    for (; i + kLanes <= tokens; i += kLanes) {
      for (int64_t c = 0; c < item.n; c += kLanes) {
        load_square<T>(row_of<T>(a.x, item.batch, first_token + i, item.first + c), a.x.stride[2],
                       tile + i * kConvChannels + c);
      }
    }
  }
  for (; i < tokens; ++i) load_input<T>(a, item, first_token + i, tile + i * kConvChannels);
}

template <class T>
TMF_INLINE void store_outputs(const ConvArgs& a, const ConvItem& item, int64_t first_token,
                              int64_t tokens, const float* tile) {
  int64_t i = 0;
  if (!by_channel(a.out) && by_time(a.out, a.tokens) && item.n % kLanes == 0) {
    for (; i + kLanes <= tokens; i += kLanes) {
      for (int64_t c = 0; c < item.n; c += kLanes) {
        auto* out = row_of<T>(a.out, item.batch, first_token + i, item.first + c);
        store_square<T>(tile + i * kConvChannels + c, a.out.stride[2], (typename T::type*)out);
      }
    }
  }
  for (; i < tokens; ++i) {
    const int64_t t = token_at(a.tokens, item.batch, first_token + i);
    auto* out = row_of<T>(a.out, item.batch, t, item.first);
    store_channels<T>(tile + i * kConvChannels, item.n, a.out.stride[2], (typename T::type*)out);
  }
}

// tile[t] = act(sum_j weight[j] tile[t + j]), in place: the sum of row t needs no earlier row.
template <class T, int K>
TMF_INLINE void convolve(const float* weight, int64_t channels, int64_t tokens, bool with_silu,
                         float* tile) {
  for (int64_t c = 0; c < channels; c += kLanes) {
    vf w[K];
#pragma GCC unroll 4
    for (int j = 0; j < K; ++j) w[j] = load(weight + j * kConvChannels + c);
    for (int64_t t = 0; t < tokens; ++t) {
      float* row = tile + t * kConvChannels + c;
      vf y = w[0] * load(row);
#pragma GCC unroll 4
      for (int j = 1; j < K; ++j) y = fma(w[j], load(row + j * kConvChannels), y);
      y = T::round(y);
      store(row, with_silu ? silu(y) : y);
    }
  }
}

// Outputs of masked tokens are zero.
template <class T>
TMF_INLINE void clear_masked(const ConvArgs& a, const ConvItem& item) {
  int64_t real = 0;
  for (int64_t t = 0; t < a.tokens.length; ++t) {
    if (real < item.count && token_at(a.tokens, item.batch, real) == t) {
      ++real;
      continue;
    }
    auto* out = (typename T::type*)row_of<T>(a.out, item.batch, t, item.first);
    for (int64_t c = 0; c < item.n; ++c) out[c * a.out.stride[2]] = 0;
  }
}

// The last width_out inputs. In place the sources lie ahead of what is written.
template <class T>
TMF_INLINE void advance_state(const ConvArgs& a, const ConvItem& item) {
  typedef typename T::type element;
  for (int64_t w = 0; w < a.width_out; ++w) {
    const int64_t n = item.count - a.width_out + w;
    const element* from = nullptr;
    int64_t stride = 0;
    if (n >= 0) {
      from = row_of<T>(a.x, item.batch, token_at(a.tokens, item.batch, n), item.first);
      stride = a.x.stride[2];
    } else if (a.state_in.data != nullptr && a.width_in + n >= 0) {
      from = row_of<T>(a.state_in, item.batch, item.first, a.width_in + n);
      stride = a.state_in.stride[1];
    }
    auto* to = (element*)row_of<T>(a.state_out, item.batch, item.first, w);
    for (int64_t c = 0; c < item.n; ++c)
      to[c * a.state_out.stride[1]] = from ? from[c * stride] : 0;
  }
}

// kLanes channels of four adjacent elements each <-> one vector for each of the four. A round of
// interleaving the first half of all elements with the second rotates the bits of their places.
template <int rounds>
TMF_INLINE void rotate(vf (&v)[4]) {
#pragma GCC unroll 4
  for (int i = 0; i < rounds; ++i) {
    const vf next[4] = {zip_low(v[0], v[2]), zip_high(v[0], v[2]), zip_low(v[1], v[3]),
                        zip_high(v[1], v[3])};
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) v[j] = next[j];
  }
}

template <class T>
TMF_INLINE void load_fours(const typename T::type* x, vf (&v)[4]) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) v[i] = T::load(x + i * kLanes);
  rotate<kLanes == 16 ? 4 : kLanes == 8 ? 3 : 2>(v);
}

template <class T>
TMF_INLINE void store_fours(vf (&v)[4], typename T::type* out) {
  rotate<2>(v);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) T::store(out + i * kLanes, v[i]);
}

// One token on a state of four inputs, all as transformers keeps them.
TMF_INLINE bool is_step(const ConvArgs& a, const ConvItem& item) {
  const auto fours = [](const View& x) { return x.stride[1] == 4 && x.stride[2] == 1; };
  return a.tokens.length == 1 && a.tokens.index == nullptr && item.n % kLanes == 0 &&
         a.width_in == 4 && a.width_out == 4 && fours(a.state_in) && fours(a.state_out) &&
         a.weight.stride[0] == 4 && a.weight.stride[1] == 1 && by_channel(a.x) && by_channel(a.out);
}

// The sums of convolve(), in the same order.
template <class T>
TMF_INLINE void step(const ConvArgs& a, const ConvItem& item) {
  typedef typename T::type element;
  const element* x = row_of<T>(a.x, item.batch, 0, item.first);
  const element* state_in = row_of<T>(a.state_in, item.batch, item.first, 0);
  const element* weight = (const element*)a.weight.data + item.first * 4;
  auto* out = (element*)row_of<T>(a.out, item.batch, 0, item.first);
  auto* state_out = (element*)row_of<T>(a.state_out, item.batch, item.first, 0);
  for (int64_t c = 0; c < item.n; c += kLanes) {
    vf s[4], w[4];
    load_fours<T>(state_in + c * 4, s);
    load_fours<T>(weight + c * 4, w);
    vf window[4] = {s[1], s[2], s[3], T::load(x + c)};
    vf y = w[0] * window[0];
#pragma GCC unroll 4
    for (int j = 1; j < 4; ++j) y = fma(w[j], window[j], y);
    y = T::round(y);
    T::store(out + c, a.silu ? silu(y) : y);
    store_fours<T>(window, state_out + c * 4);
  }
}

template <class T, int K>
static void conv(const ConvArgs& a, int64_t batch, int64_t first) {
  const int64_t left = a.C - first;
  const ConvItem item = {batch, first, left < kConvChannels ? left : kConvChannels,
                         token_count(a.tokens, batch)};
  if (K == 4 && a.state_in.data != nullptr && is_step(a, item)) return step<T>(a, item);
  float weight[K * kConvChannels], tile[(kConvHistory + kConvTokens) * kConvChannels];
  const auto* w = (const typename T::type*)a.weight.data + first * a.weight.stride[0];
  for (int j = 0; j < K; ++j) {
    load_channels<T>(w + j * a.weight.stride[1], item.n, a.weight.stride[0],
                     weight + j * kConvChannels);
  }
  float* history = tile;
  float* inputs = tile + (K - 1) * kConvChannels;
  for (int64_t t = 0; t < item.count; t += kConvTokens) {
    const int64_t tokens = item.count - t < kConvTokens ? item.count - t : kConvTokens;
    for (int j = 0; j < K - 1; ++j) {
      load_input<T>(a, item, t - (K - 1) + j, history + j * kConvChannels);
    }
    load_inputs<T>(a, item, t, tokens, inputs);
    convolve<T, K>(weight, item.n, tokens, a.silu, tile);
    store_outputs<T>(a, item, t, tokens, tile);
  }
  if (a.tokens.index != nullptr) clear_masked<T>(a, item);
  advance_state<T>(a, item);
}

template <class T>
static void conv_any_width(const ConvArgs& a, int64_t batch, int64_t first) {
  if (a.K == 2) return conv<T, 2>(a, batch, first);
  if (a.K == 3) return conv<T, 3>(a, batch, first);
  return conv<T, 4>(a, batch, first);
}

static void conv_any_dtype(const ConvArgs& a, int64_t batch, int64_t first) {
  if (a.dtype == Dtype::f32) return conv_any_width<F32>(a, batch, first);
  if (a.dtype == Dtype::f16) return conv_any_width<F16>(a, batch, first);
  return conv_any_width<BF16>(a, batch, first);
}

}  // namespace tmf::cpu::TMF_ISA
