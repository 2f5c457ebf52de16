#include "cpu/args.h"

#include <c10/util/Exception.h>

namespace tmf::cpu {

Dtype dtype_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return Dtype::f32;
    case at::kHalf:
      return Dtype::f16;
    case at::kBFloat16:
      return Dtype::bf16;
    default:
      TORCH_INTERNAL_ASSERT(false, "no kernel for ", x.scalar_type());
  }
}

View view_of(const at::Tensor& x) {
  View view = {};
  if (!x.defined()) return view;
  TORCH_INTERNAL_ASSERT(x.dim() <= 4);
  view.data = x.data_ptr();
  for (int64_t i = 0; i < x.dim(); ++i) view.stride[i] = x.stride(i);
  return view;
}

TokenList::TokenList(const at::Tensor& mask, int64_t batch, int64_t length) : length_(length) {
  if (!mask.defined()) return;
  TORCH_INTERNAL_ASSERT(mask.scalar_type() == at::kBool);
  const bool* m = mask.const_data_ptr<bool>();
  real_.resize(batch * length);
  index_.resize(batch * length);
  count_.resize(batch);
  int64_t total = 0;
  for (int64_t b = 0; b < batch; ++b) {
    int64_t n = 0;
    for (int64_t t = 0; t < length; ++t) {
      const bool real = m[b * mask.stride(0) + t * mask.stride(1)];
      real_[b * length + t] = real;
      if (real) index_[b * length + n++] = t;
    }
    count_[b] = n;
    total += n;
  }
  // Nothing masked: the kernels need no list.
  if (total == batch * length) index_.clear();
}

Tokens TokenList::tokens() const {
  return {index_.empty() ? nullptr : index_.data(), count_.data(), length_};
}

bool TokenList::is_real(int64_t batch, int64_t token) const {
  return index_.empty() || real_[batch * length_ + token];
}

}  // namespace tmf::cpu
