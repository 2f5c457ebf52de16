// The stages of a GDN layer as one backend implements them, after the checks of op_args.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>
#include <vector>

#include "head_map.h"

namespace tmf {

// Where a stage reads its state from and where it leaves the new one. `in` may be undefined (zeros)
// and may be `out` itself; `out` is always given.
struct StatePair {
  at::Tensor in, out;
};

struct Stages {
  virtual ~Stages() = default;

  // x (B, T, K), weights (N, K) in rows -> x weight^T (B, T, N) for each.
  virtual std::vector<at::Tensor> linears(const at::Tensor& x, at::TensorList weights) const;

  // x (..., H), weight (H): x / rms(x) * (1 + weight), rounded once.
  virtual at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) const = 0;

  // x (B, T, C), weight (C, K) -> (B, T, C). A masked token is skipped: no later window holds it,
  // the state does not take it in, its output is zero.
  virtual at::Tensor causal_conv1d(const at::Tensor& x, const at::Tensor& weight,
                                   const at::Tensor& mask, const StatePair& state,
                                   bool silu) const = 0;

  // a, b (B, T, Hv) -> (g, beta) float32.
  virtual std::tuple<at::Tensor, at::Tensor> gates(const at::Tensor& a, const at::Tensor& b,
                                                   const at::Tensor& A_log,
                                                   const at::Tensor& dt_bias) const = 0;

  // -> (B, T, Hv, Dv) in q's dtype, contiguous. A masked token leaves the state, its output is
  // zero.
  virtual at::Tensor gated_delta_rule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const at::Tensor& g, const at::Tensor& beta,
                                      const at::Tensor& mask, const StatePair& state,
                                      HeadMap head_map, double scale, bool qk_l2norm) const = 0;

  // o, z (B, T, Hv, Dv), weight (Dv): weight * (o / rms(o)) * silu(z), with the checkpoint's
  // roundings.
  virtual at::Tensor gated_rms_norm(const at::Tensor& o, const at::Tensor& z,
                                    const at::Tensor& weight, double eps) const = 0;
};

const Stages& stock_stages();   // aten ops, any device
const Stages& native_stages();  // our C++, CPU tensors

}  // namespace tmf
