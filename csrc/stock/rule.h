// The gated delta rule in aten ops.
#pragma once

#include "stages.h"

namespace tmf::stock {

// Contract of Stages::gated_delta_rule. Recurrent for one token, else chunks of up to 64 tokens.
at::Tensor gated_delta_rule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& g, const at::Tensor& beta, const at::Tensor& mask,
                            const StatePair& state, HeadMap head_map, double scale, bool qk_l2norm);

}  // namespace tmf::stock
