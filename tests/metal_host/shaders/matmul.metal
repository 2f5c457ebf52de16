// C = A B with 8x8 matrices.  A: [M][K]; B: [K][N] in half, bfloat or float; C: [M][N] float.
// A threadgroup of four simdgroups makes a 16 x 16 tile of C and stages 16 x 16 tiles of A and B in
// threadgroup memory.  M, N, K multiples of 16.  Grid (N / 16, M / 16).
#include <metal_simdgroup_matrix>
#include <metal_stdlib>
#pragma METAL fp contract(off)
using namespace metal;

struct MatmulArgs {
  uint M, N, K;
};

template <typename T>
[[kernel, max_total_threads_per_threadgroup(128)]] void matmul(
    device const T* A [[buffer(0)]], device const T* B [[buffer(1)]], device float* C [[buffer(2)]],
    constant MatmulArgs& a [[buffer(3)]], uint2 tile [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup T left[16 * 16], right[16 * 16];
  const uint row0 = tile.y * 16, column0 = tile.x * 16;
  const uint r = simdgroup / 2 * 8, c = simdgroup % 2 * 8;
  simdgroup_matrix<float, 8, 8> sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (uint k0 = 0; k0 < a.K; k0 += 16) {
    for (uint i = tid; i < 256; i += 128) {
      left[i] = A[(row0 + i / 16) * a.K + k0 + i % 16];
      right[i] = B[(k0 + i / 16) * a.N + column0 + i % 16];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint k = 0; k < 16; k += 8) {
      simdgroup_matrix<T, 8, 8> x, w;
      simdgroup_load(x, left + r * 16 + k, 16);
      simdgroup_load(w, right + k * 16 + c, 16);
      simdgroup_multiply_accumulate(sum, x, w, sum);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  simdgroup_store(sum, C + (row0 + r) * a.N + column0 + c, a.N);
}
template [[host_name("matmul_half")]] [[kernel]] decltype(matmul<half>) matmul<half>;
template [[host_name("matmul_bfloat")]] [[kernel]] decltype(matmul<bfloat>) matmul<bfloat>;
template [[host_name("matmul_float")]] [[kernel]] decltype(matmul<float>) matmul<float>;
