// One token of the gated delta rule, per value head h with key head h / (Hv / Hk):
//   S *= exp(g); d = beta (v - S k); S += d k^T; o = S q        k, q scaled to unit length first
// q, k: [Hk][128]; v, o: [Hv][128]; g, beta: [Hv]; S: [Hv][128 v][128 k].
// Grid (value rows / (8 simdgroups), Hv): a simdgroup owns 8 value rows.
#include <metal_stdlib>
#pragma METAL fp contract(off)
using namespace metal;

struct GdnArgs {
  uint Hk, Hv;
  float scale, eps;
};
constant constexpr int DK = 128;
constant constexpr int DV = 128;
constant constexpr int ROWS = 8;

static inline float4 unit(float4 v, float eps) { return v * rsqrt(simd_sum(dot(v, v)) + eps); }

template <typename T>
kernel void gdn_step(device const T* q [[buffer(0)]], device const T* k [[buffer(1)]],
                     device const T* v [[buffer(2)]], device const float* g [[buffer(3)]],
                     device const float* beta [[buffer(4)]], device float* S [[buffer(5)]],
                     device T* o [[buffer(6)]], constant GdnArgs& a [[buffer(7)]],
                     uint2 group [[threadgroup_position_in_grid]],
                     uint simdgroup [[simdgroup_index_in_threadgroup]],
                     uint simdgroups [[simdgroups_per_threadgroup]],
                     uint lane [[thread_index_in_simdgroup]]) {
  typedef vec<T, 4> T4;
  const uint h = group.y, hk = h / (a.Hv / a.Hk);
  const float4 kk = unit(float4(((device const T4*)(k + hk * DK))[lane]), a.eps);
  const float4 qq = unit(float4(((device const T4*)(q + hk * DK))[lane]), a.eps) * a.scale;
  const float decay = exp(g[h]), b = beta[h];
  const uint row0 = h * DV + (group.x * simdgroups + simdgroup) * ROWS;
  for (uint row = row0; row < row0 + ROWS; ++row) {
    device float4* state = (device float4*)(S + row * DK) + lane;
    float4 s = *state * decay;
    const float d = b * (float(v[row]) - simd_sum(dot(s, kk)));
    s += d * kk;
    *state = s;
    const float y = simd_sum(dot(s, qq));
    if (lane == 0) o[row] = T(y);
  }
}
template [[host_name("gdn_step_f32")]] [[kernel]] decltype(gdn_step<float>) gdn_step<float>;
template [[host_name("gdn_step_bf16")]] [[kernel]] decltype(gdn_step<bfloat>) gdn_step<bfloat>;
