// gated_rms_norm and rms_norm: rows go to threads.
#include <ATen/Parallel.h>

#include "cpu/args.h"
#include "cpu/kernels.h"

namespace tmf::cpu {
namespace {

// Aligns the dims of x to the right of four; leading ones have size 1.
NormArgs norm_args(const at::Tensor& x, const at::Tensor& weight, double eps,
                   const at::Tensor& out) {
  TORCH_INTERNAL_ASSERT(x.dim() >= 1 && x.dim() <= 4 && x.stride(-1) == 1);
  NormArgs args = {};
  args.dtype = dtype_of(x);
  args.eps = static_cast<float>(eps);
  args.x.data = x.data_ptr();
  args.weight = weight.data_ptr();
  args.out = out.data_ptr();
  const int64_t skipped = 4 - x.dim();
  for (int64_t i = 0; i < 4; ++i) {
    args.size[i] = i < skipped ? 1 : x.size(i - skipped);
    args.x.stride[i] = i < skipped ? 0 : x.stride(i - skipped);
  }
  return args;
}

void run(const NormArgs& args) {
  const int64_t rows = args.size[0] * args.size[1] * args.size[2];
  const int64_t grain = 4096 / (args.size[3] + 1) + 1;
  const Isa& kernels = isa();
  at::parallel_for(0, rows, grain,
                   [&](int64_t begin, int64_t end) { kernels.norm(args, begin, end); });
}

}  // namespace

void gated_rms_norm(const at::Tensor& o, const at::Tensor& z, const at::Tensor& weight, double eps,
                    const at::Tensor& out) {
  const at::Tensor contiguous_weight = weight.contiguous();
  NormArgs args = norm_args(o, contiguous_weight, eps, out);
  TORCH_INTERNAL_ASSERT(o.dim() == 4 && z.dim() == 4 && z.stride(3) == 1);
  args.gate = view_of(z);
  run(args);
}

void rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& out) {
  const at::Tensor contiguous_weight = weight.contiguous();
  run(norm_args(x, contiguous_weight, eps, out));
}

}  // namespace tmf::cpu
