// The stages on our native CPU kernels.
#include "stages.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "cpu/kernels.h"

namespace tmf {
namespace {

at::Tensor rows_contiguous(const at::Tensor& t) { return t.stride(-1) == 1 ? t : t.contiguous(); }

// One row of a dtype in which ours is faster than aten's: see benchmarks/NOTES.md.
bool is_own_row(const at::Tensor& x, at::TensorList weights) {
  if (x.size(0) * x.size(1) != 1 || x.scalar_type() == at::kHalf) return false;
  for (const at::Tensor& w : weights) {
    if (w.stride(1) != 1) return false;
  }
  return true;
}

class NativeStages final : public Stages {
 public:
  std::vector<at::Tensor> linears(const at::Tensor& x, at::TensorList weights) const override {
    if (!is_own_row(x, weights)) return Stages::linears(x, weights);
    std::vector<at::Tensor> products;
    for (const at::Tensor& w : weights) {
      products.push_back(at::empty({1, 1, w.size(0)}, x.options()));
    }
    cpu::linear_row(rows_contiguous(x), weights, products);
    return products;
  }

  at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) const override {
    const at::Tensor out = at::empty(x.sizes(), x.options());
    cpu::rms_norm(x.contiguous(), weight.contiguous(), eps, out);
    return out;
  }

  at::Tensor causal_conv1d(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& mask,
                           const StatePair& state, bool silu) const override {
    const at::Tensor out = at::empty(x.sizes(), x.options());
    cpu::causal_conv1d(x, weight, mask, state.in, state.out, out, silu);
    return out;
  }

  std::tuple<at::Tensor, at::Tensor> gates(const at::Tensor& a, const at::Tensor& b,
                                           const at::Tensor& A_log,
                                           const at::Tensor& dt_bias) const override {
    const at::Tensor g = at::empty(a.sizes(), a.options().dtype(at::kFloat));
    const at::Tensor beta = at::empty_like(g);
    cpu::gates(a, b, A_log, dt_bias, g, beta);
    return {g, beta};
  }

  at::Tensor gated_delta_rule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const at::Tensor& g, const at::Tensor& beta, const at::Tensor& mask,
                              const StatePair& state, HeadMap head_map, double scale,
                              bool qk_l2norm) const override {
    const at::Tensor out = at::empty(v.sizes(), v.options());
    cpu::gated_delta_rule(rows_contiguous(q), rows_contiguous(k), rows_contiguous(v), g, beta, mask,
                          state.in, state.out, out, head_map, scale, qk_l2norm);
    return out;
  }

  at::Tensor gated_rms_norm(const at::Tensor& o, const at::Tensor& z, const at::Tensor& weight,
                            double eps) const override {
    cpu::gated_rms_norm(o, rows_contiguous(z), weight.contiguous(), eps, o);
    return o;
  }
};

}  // namespace

const Stages& native_stages() {
  static const NativeStages stages;
  return stages;
}

}  // namespace tmf
