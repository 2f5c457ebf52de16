// Native CPU kernels. Arguments are validated by the caller; asserts here are internal.
//
// One source is compiled for several instruction sets and chosen once, by what the processor has.
// The environment variable TMF_CPU_ISA (baseline, avx2, avx512; read once) asks for a lower one.
// Results are bit-identical over repeats, thread counts and batch neighbours; they differ by
// rounding between instruction sets.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "head_map.h"

namespace tmf::cpu {

// The name of the instruction set in use: baseline, avx2 or avx512.
const char* isa_name();

bool rule_supported(int64_t head_k_dim, int64_t head_v_dim);  // each of 32, 64, 128, 256
bool conv_supported(int64_t width);                           // 2 to 4

// The gated delta rule over T tokens.
//   q, k (B, T, Hk, Dk), v (B, T, Hv, Dv)   one dtype (float32, float16, bfloat16), last dim
//   contiguous g (B, T, Hv) float32                    log decay, <= 0 beta (B, T, Hv) float32 or
//   the dtype of q mask (B, T) bool, or undefined          a masked token leaves the state alone
//   and its output is zero state_in (B, Hv, Dk, Dv) float32        or undefined: zeros state_out
//   may be state_in; of the last two strides of either, one is 1 out (B, T, Hv, Dv) contiguous,
//   dtype of q
// All other strides are free. qk_l2norm: x * rsqrt(sum x^2 + 1e-6) in fp32; then q is multiplied by
// scale.
void gated_delta_rule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const at::Tensor& g, const at::Tensor& beta, const at::Tensor& mask,
                      const at::Tensor& state_in, const at::Tensor& state_out,
                      const at::Tensor& out, HeadMap head_map, double scale, bool qk_l2norm);

// The causal depthwise convolution: out[t, c] = act(round(sum_j weight[c, j] x[t - K + 1 + j, c])).
//   x, out (B, T, C), weight (C, K), state_in (B, C, W) or undefined, state_out (B, C, Wout)   one
//   dtype W, Wout >= K - 1; a state holds the last inputs of real tokens, oldest first; mask as
//   above
// All strides are free; state_out may be state_in, out never aliases x. silu: in fp32, of the
// rounded sum.
void causal_conv1d(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& mask,
                   const at::Tensor& state_in, const at::Tensor& state_out, const at::Tensor& out,
                   bool silu);

// beta = sigmoid(b), rounded to the dtype of b; g = -exp(A_log) * softplus(a + dt_bias).
//   a, b (B, T, Hv), A_log, dt_bias (Hv), g, beta (B, T, Hv) float32 contiguous
void gates(const at::Tensor& a, const at::Tensor& b, const at::Tensor& A_log,
           const at::Tensor& dt_bias, const at::Tensor& g, const at::Tensor& beta);

// out = round(round(weight * round(o * rsqrt(mean(o^2) + eps))) * silu(z)), over the last dim.
//   o, out (B, T, Hv, Dv) contiguous (out may be o), z the same shape, weight (Dv)   one dtype
void gated_rms_norm(const at::Tensor& o, const at::Tensor& z, const at::Tensor& weight, double eps,
                    const at::Tensor& out);

// outs[i] = x weights[i]^T, summed in fp32 and rounded once. A row's bits do not depend on the
// others.
//   x (.., K) one row, contiguous, weights[i] (N, K) with contiguous rows, outs[i] N elements,
//   contiguous   one dtype
void linear_row(const at::Tensor& x, at::TensorList weights, at::TensorList outs);

// out = round(x * rsqrt(mean(x^2) + eps) * (1 + weight)), over the last dim; x of up to four dims,
// out contiguous.
void rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& out);

}  // namespace tmf::cpu
