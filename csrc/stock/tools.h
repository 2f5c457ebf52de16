// Tensor tools that the stock stages and the backward formulas share.
#pragma once

#include <ATen/core/Tensor.h>

namespace tmf::stock {

constexpr int64_t kChunk = 64;  // tokens of a chunk, a power of two
constexpr double kL2NormEps = 1e-6;
constexpr double kSoftplusThreshold = 20;

// What sums are in: float32, and float64 for float64.
c10::ScalarType wide_type(const at::Tensor& t);
at::Tensor widened(const at::Tensor& t);

// The tokens of a chunk for a sequence of this length: kChunk, or less if fewer do.
int64_t chunk_size(int64_t tokens);

// (B, T, Hk, D) -> (B, Hv, T, D)
at::Tensor spread_heads(const at::Tensor& x, int64_t num_v_heads, bool tiled);

// g (.., C) -> (.., C, C): exp(g_{j+1} + .. + g_i), zero for j > i. Only the terms between are
// added: a difference of running sums would lose them behind a large one, and exp(-sum) alone would
// overflow.
at::Tensor decay_between(const at::Tensor& g);

// The inverse of I + A for strictly lower triangular A (.., C, C), C a power of two: each round
// makes diagonal blocks of twice the size. Products only, and as stable as substitution.
at::Tensor unit_lower_inverse(const at::Tensor& A);

// Real tokens of each row moved to the front, in order.
struct Compressed {
  at::Tensor source;  // (B, T): the token that stands at a place; 0 past the row's real tokens
  at::Tensor place;   // (B, T): the place of a real token
  at::Tensor count;   // (B, 1): real tokens of the row
};

// mask (B, T), T >= 1
Compressed compress(const at::Tensor& mask);

// x (B, T, C), index (B, T) -> x[b, index[b, t]]
at::Tensor gather_tokens(const at::Tensor& x, const at::Tensor& index);

}  // namespace tmf::stock
