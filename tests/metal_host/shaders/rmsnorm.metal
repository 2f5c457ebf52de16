// y[r][i] = x[r][i] / sqrt(mean_i x[r][i]^2 + eps) * w[i], plus x[r][i] with the function constant.
// x, y: [rows][n]; w: [n].  One threadgroup of 256 threads a row.

// metal_host: explicit-fma
#include <metal_simdgroup>
#include <metal_stdlib>
#pragma METAL fp contract(off)
using namespace metal;

constant bool has_residual [[function_constant(0)]];

template <typename T, int SIMDGROUPS>
kernel void rmsnorm(device const T* x [[buffer(0)]], device const T* w [[buffer(1)]],
                    device T* y [[buffer(2)]], constant uint& n [[buffer(3)]],
                    constant float& eps [[buffer(4)]], uint row [[threadgroup_position_in_grid]],
                    uint tid [[thread_position_in_threadgroup]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float part[SIMDGROUPS];
  device const T* xr = x + row * n;
  float sum = 0;
  for (uint i = tid; i < n; i += SIMDGROUPS * 32) {
    const float v = float(xr[i]);
    sum = fma(v, v, sum);
  }
  sum = simd_sum(sum);
  if (lane == 0) part[simdgroup] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0;
  for (int i = 0; i < SIMDGROUPS; ++i) total += part[i];
  const float scale = precise::rsqrt(total / float(n) + eps);
  for (uint i = tid; i < n; i += SIMDGROUPS * 32) {
    const float v = float(xr[i]);
    const float o = v * scale * float(w[i]);
    y[row * n + i] = T(has_residual ? o + v : o);
  }
}
template [[host_name("rmsnorm_f32")]] [[kernel]] decltype(rmsnorm<float, 8>) rmsnorm<float, 8>;
template [[host_name("rmsnorm_bf16")]] [[kernel]] decltype(rmsnorm<bfloat, 8>) rmsnorm<bfloat, 8>;
