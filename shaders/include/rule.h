// The gated delta rule for RPL columns of the state a lane. The Dk keys of a column are spread over
// eight neighbouring lanes: lane j holds keys 4 (8 i + j) .. + 3, i = 0 .. Dk/32 - 1.
// Numeric geometry: per lane i in order by fma, (x + y) + (z + w), butterfly 1, 2, 4; the output is
// taken from the old state, decay (S q) + d (k q). Launch geometry: RPL, and who has which column.
#pragma once
#include "middle.h"

constant constexpr uint LANES = 8;  // of a column

template <int DK, int RPL>
struct Rows {
  float4 s[RPL][DK / 32];
};
// What the rule reads of a block of tokens, in threadgroup memory.
template <int DK, int COLUMNS>
struct RuleMemory {
  float4 k[BLOCK][DK / 4], q[BLOCK][DK / 4];
  float v[BLOCK][COLUMNS];
  float4 scalars[BLOCK];  // decay, beta, k.q, not masked
};

// p: the head's state [Dv][Dk] or [Dk][Dv]; column: the first of the lane's RPL neighbours.
template <int DK, int DV, int RPL>
inline void rows_load(thread Rows<DK, RPL>& r, device const float* p, uint column, uint j) {
#pragma unroll
  for (int i = 0; i < DK / 32; ++i)
    if (kKeysAdjacent) {
#pragma unroll
      for (int n = 0; n < RPL; ++n)
        r.s[n][i] = ((device const float4*)(p + (column + n) * DK))[LANES * i + j];
    } else {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        float x[RPL];
        const uint key = 4 * (LANES * i + j) + c;
        widen(x, *(device const typename Run<float, RPL>::type*)(p + key * DV + column));
#pragma unroll
        for (int n = 0; n < RPL; ++n) r.s[n][i][c] = x[n];
      }
    }
}
template <int DK, int DV, int RPL>
inline void rows_store(thread const Rows<DK, RPL>& r, device float* p, uint column, uint j) {
#pragma unroll
  for (int i = 0; i < DK / 32; ++i)
#pragma unroll
    for (int n = 0; n < RPL; ++n)
      if (kKeysAdjacentOut) {
        ((device float4*)(p + (column + n) * DK))[LANES * i + j] = r.s[n][i];
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c) p[(4 * (LANES * i + j) + c) * DV + column + n] = r.s[n][i][c];
      }
}
template <int DK, int RPL>
inline void rows_zero(thread Rows<DK, RPL>& r) {
#pragma unroll
  for (int n = 0; n < RPL; ++n)
#pragma unroll
    for (int i = 0; i < DK / 32; ++i) r.s[n][i] = float4(0.0f);
}
inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }

// S <- decay S;  d = beta (v - S k);  S <- S + k d;  v <- S q. Both products are taken with the old
// S, so that their reductions overlap. k, q: this lane's first word.
template <int DK, int RPL>
inline void rule_token(thread Rows<DK, RPL>& r, threadgroup const float4* k,
                       threadgroup const float4* q, thread float (&v)[RPL], float4 scalars) {
  const float decay = scalars.x, beta = scalars.y, kq = scalars.z;
  float4 kk[DK / 32], m4[RPL], y4[RPL];
#pragma unroll
  for (int n = 0; n < RPL; ++n) m4[n] = y4[n] = float4(0.0f);
#pragma unroll
  for (int i = 0; i < DK / 32; ++i) {
    kk[i] = k[LANES * i];
    const float4 qq = q[LANES * i];
#pragma unroll
    for (int n = 0; n < RPL; ++n) {
      m4[n] = fma(r.s[n][i], kk[i], m4[n]);
      y4[n] = fma(r.s[n][i], qq, y4[n]);
    }
  }
  float m[RPL], y[RPL];
#pragma unroll
  for (int n = 0; n < RPL; ++n) m[n] = sum4(m4[n]), y[n] = sum4(y4[n]);
#pragma unroll
  for (int o = 1; o < int(LANES); o *= 2)
#pragma unroll
    for (int n = 0; n < RPL; ++n) {
      m[n] += simd_shuffle_xor(m[n], ushort(o));
      y[n] += simd_shuffle_xor(y[n], ushort(o));
    }
#pragma unroll
  for (int n = 0; n < RPL; ++n) {
    const float d = (v[n] - decay * m[n]) * beta;
    v[n] = fma(d, kq, decay * y[n]);
#pragma unroll
    for (int i = 0; i < DK / 32; ++i) r.s[n][i] = fma(kk[i], float4(d), r.s[n][i] * decay);
  }
}

// n tokens of a block, in order; masked ones leave the state alone. out[t * stride + c] takes
// column c of token t, rounded to the model dtype; local: the lane's first column within mem.v.
template <typename T, int DK, int RPL, int COLUMNS, typename PO>
inline void rule_block(thread Rows<DK, RPL>& r, threadgroup const RuleMemory<DK, COLUMNS>& mem,
                       uint local, uint j, uint n, PO out, ulong stride) {
  for (uint t = 0; t < n; ++t) {
    const float4 scalars = mem.scalars[t];
    if (scalars.w == 0.0f) continue;
    float v[RPL];
#pragma unroll
    for (int c = 0; c < RPL; ++c) v[c] = mem.v[t][local + c];
    rule_token<DK, RPL>(r, mem.k[t] + j, mem.q[t] + j, v, scalars);
#pragma unroll
    for (int c = 0; c < RPL; ++c)
      if (j == uint(c)) out[t * stride + local + c] = T(v[c]);
  }
}
