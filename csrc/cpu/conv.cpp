// causal_conv1d: blocks of channels go to threads.
#include <ATen/Parallel.h>

#include "cpu/args.h"
#include "cpu/kernels.h"

namespace tmf::cpu {

namespace {

constexpr int64_t kGrain = 1 << 13;  // outputs that are worth waking a thread

}  // namespace

bool conv_supported(int64_t width) { return width >= 2 && width <= 4; }

void causal_conv1d(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& mask,
                   const at::Tensor& state_in, const at::Tensor& state_out, const at::Tensor& out,
                   bool silu) {
  const int64_t batch = x.size(0), channels = x.size(2);
  const TokenList list(mask, batch, x.size(1));
  ConvArgs args = {};
  args.dtype = dtype_of(x);
  args.silu = silu;
  args.C = channels;
  args.K = weight.size(1);
  args.width_in = state_in.defined() ? state_in.size(2) : 0;
  args.width_out = state_out.size(2);
  args.x = view_of(x);
  args.out = view_of(out);
  args.weight = view_of(weight);
  args.state_in = view_of(state_in);
  args.state_out = view_of(state_out);
  args.tokens = list.tokens();
  TORCH_INTERNAL_ASSERT(conv_supported(args.K));

  const Isa& kernels = isa();
  const int64_t blocks = (channels + kConvChannels - 1) / kConvChannels;
  const int64_t grain = kGrain / (kConvChannels * x.size(1) + 1) + 1;
  at::parallel_for(0, batch * blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      kernels.conv(args, i / blocks, i % blocks * kConvChannels);
  });
}

}  // namespace tmf::cpu
