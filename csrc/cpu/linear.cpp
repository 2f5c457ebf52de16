// linear_row: blocks of weight rows of all products go to threads together.
#include <ATen/Parallel.h>

#include <algorithm>

#include "cpu/args.h"
#include "cpu/kernels.h"

namespace tmf::cpu {
namespace {

constexpr int64_t kBlock = 16;  // rows of an item: whole vectors in every instruction set
constexpr int64_t kWeightGrain = 1 << 16;  // weights that are worth waking a thread

}  // namespace

void linear_row(const at::Tensor& x, at::TensorList weights, at::TensorList outs) {
  const Isa& kernels = isa();
  const int64_t inputs = x.size(-1);
  int64_t blocks = 0;
  for (const at::Tensor& w : weights) blocks += (w.size(0) + kBlock - 1) / kBlock;
  const int64_t grain = kWeightGrain / (kBlock * inputs) + 1;
  at::parallel_for(0, blocks, grain, [&](int64_t begin, int64_t end) {
    int64_t before = 0;  // blocks of the weights so far
    for (size_t i = 0; i < weights.size() && before < end; ++i) {
      const at::Tensor& w = weights[i];
      const int64_t rows = w.size(0), count = (rows + kBlock - 1) / kBlock;
      const int64_t first = std::max(begin - before, int64_t{0}) * kBlock;
      const int64_t last = std::min((end - before) * kBlock, rows);
      if (first < last) {
        kernels.linear_row({dtype_of(x), inputs, w.stride(0), x.const_data_ptr(),
                            w.const_data_ptr(), outs[i].mutable_data_ptr()},
                           first, last);
      }
      before += count;
    }
  });
}

}  // namespace tmf::cpu
