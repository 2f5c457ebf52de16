// gates: the decay and the update gate of each token and value head.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "cpu/kernels.h"

namespace tmf::cpu {
namespace {

float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }
float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

template <class T>
void gates_of(const at::Tensor& a, const at::Tensor& b, const at::Tensor& A_log,
              const at::Tensor& dt_bias, const at::Tensor& g, const at::Tensor& beta) {
  const int64_t tokens = a.size(1), heads = a.size(2);
  const T* a_data = a.const_data_ptr<T>();
  const T* b_data = b.const_data_ptr<T>();
  const float* rate = A_log.const_data_ptr<float>();
  const float* bias = dt_bias.const_data_ptr<float>();
  float* g_data = g.mutable_data_ptr<float>();
  float* beta_data = beta.mutable_data_ptr<float>();
  at::parallel_for(0, a.size(0) * tokens, 2048 / heads + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* a_row = a_data + row / tokens * a.stride(0) + row % tokens * a.stride(1);
      const T* b_row = b_data + row / tokens * b.stride(0) + row % tokens * b.stride(1);
      for (int64_t h = 0; h < heads; ++h) {
        const float dt = softplus(static_cast<float>(a_row[h * a.stride(2)]) + bias[h]);
        g_data[row * heads + h] = -std::exp(rate[h]) * dt;
        const T rounded = static_cast<T>(sigmoid(static_cast<float>(b_row[h * b.stride(2)])));
        beta_data[row * heads + h] = static_cast<float>(rounded);
      }
    }
  });
}

}  // namespace

void gates(const at::Tensor& a, const at::Tensor& b, const at::Tensor& A_log,
           const at::Tensor& dt_bias, const at::Tensor& g, const at::Tensor& beta) {
  const at::Tensor rate = A_log.to(at::kFloat).contiguous();
  const at::Tensor bias = dt_bias.to(at::kFloat).contiguous();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, a.scalar_type(), "gates",
                                  [&] { gates_of<scalar_t>(a, b, rate, bias, g, beta); });
}

}  // namespace tmf::cpu
