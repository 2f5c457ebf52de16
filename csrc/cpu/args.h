// From tensors to the plain structs of isa.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "cpu/isa.h"

namespace tmf::cpu {

Dtype dtype_of(const at::Tensor& x);

// Data and strides; an undefined tensor has null data.
View view_of(const at::Tensor& x);

// The real tokens of each row of a (B, T) mask; owns what Tokens points to.
class TokenList {
 public:
  TokenList(const at::Tensor& mask, int64_t batch, int64_t length);

  Tokens tokens() const;
  bool is_real(int64_t batch, int64_t token) const;
  bool any_masked() const { return !index_.empty(); }

 private:
  int64_t length_;
  std::vector<int64_t> index_, count_;
  std::vector<bool> real_;
};

}  // namespace tmf::cpu
