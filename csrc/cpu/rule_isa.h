// The gated delta rule by mini-chunks of four tokens, against a tile of the state that stays in the
// first-level cache.
//
// With S the state before a chunk, P_i = a_0 .. a_i the decay up to token i and D_ij = a_{j+1} ..
// a_i:
//   d_i = beta_i (v_i - P_i S^T k_i - sum_{j<i} D_ij (k_i . k_j) d_j)
//   o_i = P_i S^T q_i + sum_{j<=i} D_ij (q_i . k_j) d_j
//   S  <- P_3 S + sum_j D_3j k_j d_j^T
// Decays are products of factors <= 1, so nothing overflows. One pass over the tile adds a chunk's
// d to it and reads S^T k and S^T q for the next chunk. Everything is separate by columns of S, so
// tiles are independent.
#pragma once

#include "cpu/rows_isa.h"
#include "cpu/rule_decode_isa.h"
#include "cpu/rule_rows_isa.h"
#include "cpu/rule_state_isa.h"
#include "cpu/simd.h"

namespace tmf::cpu::TMF_ISA {

constexpr int kChunk = 4;

// The scalars of one chunk for one value head.
struct Coefficients {
  float decay;                                         // of the state over the chunk: P_3
  float prefix[kChunk], beta[kChunk], suffix[kChunk];  // P_i, beta_i, D_3i
  float kk[6], qk[10];  // D_ij k_i . k_j (j < i) and D_ij q_i . k_j (j <= i), by rows
};

// The scalars of one chunk for one key head.
struct Products {
  float kk[6], qk[10];
};

// Scratch, in floats, each part a multiple of 16.
struct RuleScratch {
  float *keys, *queries;  // [chunk][Dk][4]
  Products* products;     // [chunk]
  Coefficients* coefficients;
  float* tiles;  // [block][Dk][kColumns]
};

TMF_INLINE int64_t round_up(int64_t n, int64_t m) { return (n + m - 1) / m * m; }

TMF_INLINE int64_t segment_chunks(const RuleArgs& r) {
  const int64_t tokens = r.tokens.length < kRuleSegment ? r.tokens.length : kRuleSegment;
  return round_up(tokens, kChunk) / kChunk;
}

static int64_t rule_scratch(const RuleArgs& r, int64_t blocks) {
  const int64_t chunks = segment_chunks(r);
  const int64_t tiles = r.tokens.length > kRuleSegment ? blocks : 1;
  const int64_t scalars =
      round_up(sizeof(Products) / 4 * chunks, 16) + round_up(sizeof(Coefficients) / 4 * chunks, 16);
  return 2 * chunks * r.Dk * kChunk + scalars + tiles * r.Dk * kColumns;
}

TMF_INLINE RuleScratch divide(const RuleArgs& r, float* memory) {
  const int64_t chunks = segment_chunks(r);
  RuleScratch s;
  s.keys = memory;
  s.queries = s.keys + chunks * r.Dk * kChunk;
  float* products = s.queries + chunks * r.Dk * kChunk;
  float* coefficients = products + round_up(sizeof(Products) / 4 * chunks, 16);
  s.products = (Products*)products;
  s.coefficients = (Coefficients*)coefficients;
  s.tiles = coefficients + round_up(sizeof(Coefficients) / 4 * chunks, 16);
  return s;
}

// rows [4][n] -> out [n][4]
TMF_INLINE void interleave_four(const float* rows, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const vf a = load(rows + i), b = load(rows + n + i);
    const vf c = load(rows + 2 * n + i), d = load(rows + 3 * n + i);
    const vf ac_low = zip_low(a, c), ac_high = zip_high(a, c);
    const vf bd_low = zip_low(b, d), bd_high = zip_high(b, d);
    store(out + 4 * i, zip_low(ac_low, bd_low));
    store(out + 4 * i + kLanes, zip_high(ac_low, bd_low));
    store(out + 4 * i + 2 * kLanes, zip_low(ac_high, bd_high));
    store(out + 4 * i + 3 * kLanes, zip_high(ac_high, bd_high));
  }
}

// Keys and queries of up to four tokens: interleaved, and their products. Missing tokens are zero.
template <class T>
static void pack_chunk(const RuleArgs& r, const RuleItem& item, int64_t first, int64_t live,
                       float* keys, float* queries, Products& products) {
  float k[kChunk * 256], q[kChunk * 256];
  const int64_t n = r.Dk;
  for (int64_t i = 0; i < live; ++i) {
    const int64_t t = token_at(r.tokens, item.batch, first + i);
    widen_row<T>(row_of<T>(r.k, item.batch, t, item.key_head), n, r.l2norm, 1.0f, k + i * n);
    widen_row<T>(row_of<T>(r.q, item.batch, t, item.key_head), n, r.l2norm, r.scale, q + i * n);
  }
  for (int64_t i = live * n; i < kChunk * n; ++i) k[i] = q[i] = 0.0f;

  vf kk[6] = {}, qk[10] = {};
  for (int64_t e = 0; e < n; e += kLanes) {
    vf key[kChunk];
#pragma GCC unroll 4
    for (int i = 0; i < kChunk; ++i) key[i] = load(k + i * n + e);
#pragma GCC unroll 4
    for (int i = 0; i < kChunk; ++i) {
      const vf query = load(q + i * n + e);
#pragma GCC unroll 4
      for (int j = 0; j < i; ++j) {
        kk[i * (i - 1) / 2 + j] = fma(key[i], key[j], kk[i * (i - 1) / 2 + j]);
      }
#pragma GCC unroll 4
      for (int j = 0; j <= i; ++j) {
        qk[i * (i + 1) / 2 + j] = fma(query, key[j], qk[i * (i + 1) / 2 + j]);
      }
    }
  }
  for (int i = 0; i < 6; ++i) products.kk[i] = sum(kk[i]);
  for (int i = 0; i < 10; ++i) products.qk[i] = sum(qk[i]);
  interleave_four(k, n, keys);
  interleave_four(q, n, queries);
}

// D_ij and what follows from it.
TMF_INLINE void chunk_decays(const float* decay, const Products& p, Coefficients& o) {
  float between[kChunk];  // D_ij of the current i
  float prefix = 1.0f;
  for (int i = 0; i < kChunk; ++i) {
    o.prefix[i] = prefix *= decay[i];
    float* kk = o.kk + i * (i - 1) / 2;
    float* qk = o.qk + i * (i + 1) / 2;
    for (int j = 0; j < i; ++j) {
      between[j] *= decay[i];
      kk[j] = between[j] * p.kk[i * (i - 1) / 2 + j];
    }
    between[i] = 1.0f;
    for (int j = 0; j <= i; ++j) qk[j] = between[j] * p.qk[i * (i + 1) / 2 + j];
  }
  for (int j = 0; j < kChunk; ++j) o.suffix[j] = between[j];
}

// Scalars of one value head for the chunks of a segment.
template <class T>
static void head_coefficients(const RuleArgs& r, int64_t b, int64_t h, int64_t first, int64_t live,
                              const Products* products, Coefficients* out) {
  float g[kRuleSegment + kLanes], decay[kRuleSegment + kLanes], beta[kRuleSegment + kLanes];
  const int64_t padded = round_up(live, kLanes);
  for (int64_t i = 0; i < padded; ++i) {
    const int64_t t = i < live ? token_at(r.tokens, b, first + i) : 0;
    g[i] = i < live ? *row_of<F32>(r.g, b, t, h) : 0.0f;
    beta[i] = i < live ? beta_at<T>(r, b, t, h) : 0.0f;
  }
  for (int64_t i = 0; i < padded; i += kLanes) store(decay + i, exp(load(g + i)));

  // A slow decay rounds to fp32 the same way in every chunk, and thousands of such errors would add
  // up: each chunk makes good what the one before left out.
  double owed = 1.0;
  for (int64_t c = 0; c * kChunk < live; ++c) {
    Coefficients& o = out[c];
    chunk_decays(decay + c * kChunk, products[c], o);
    double total = 0.0;
    for (int i = 0; i < kChunk; ++i) {
      o.beta[i] = beta[c * kChunk + i];
      total += g[c * kChunk + i];
    }
    const double exact = owed * __builtin_exp(total);
    o.decay = (float)exact;
    owed = o.decay > 1e-30f ? exact / o.decay : 1.0;
  }
}

// Values in the registers of one tile: four tokens by the columns of the tile.
struct Block {
  vf x[kChunk][kTileVectors];
};

// Update: tile = decay * tile + keys d. Read: with the new tile, sk = tile^T next_keys and sq =
// tile^T next_queries.
template <bool kUpdate, bool kRead>
TMF_INLINE void pass(float* tile, int64_t rows, float decay, const Block& d, const float* keys,
                     const float* next_keys, const float* next_queries, Block& sk, Block& sq) {
  Block k_sum = {}, q_sum = {};
  for (int64_t row = 0; row < rows; ++row) {
    vf s[kTileVectors];
#pragma GCC unroll 2
    for (int n = 0; n < kTileVectors; ++n) s[n] = load(tile + row * kColumns + n * kLanes);
    if (kUpdate) {
#pragma GCC unroll 2
      for (int n = 0; n < kTileVectors; ++n) s[n] *= decay;
#pragma GCC unroll 4
      for (int i = 0; i < kChunk; ++i) {
        const vf k = splat(keys[row * kChunk + i]);
#pragma GCC unroll 2
        for (int n = 0; n < kTileVectors; ++n) s[n] = fma(k, d.x[i][n], s[n]);
      }
#pragma GCC unroll 2
      for (int n = 0; n < kTileVectors; ++n) store(tile + row * kColumns + n * kLanes, s[n]);
    }
    if (kRead) {
#pragma GCC unroll 4
      for (int i = 0; i < kChunk; ++i) {
        const vf k = splat(next_keys[row * kChunk + i]);
        const vf q = splat(next_queries[row * kChunk + i]);
#pragma GCC unroll 2
        for (int n = 0; n < kTileVectors; ++n) {
          k_sum.x[i][n] = fma(k, s[n], k_sum.x[i][n]);
          q_sum.x[i][n] = fma(q, s[n], q_sum.x[i][n]);
        }
      }
    }
  }
  sk = k_sum;
  sq = q_sum;
}

// From S^T k and S^T q of a chunk: its outputs, and d (scaled by the decay to the chunk's end).
template <class T>
TMF_INLINE void solve_chunk(const RuleArgs& r, int64_t b, int64_t h, int64_t column, int64_t first,
                            int64_t live, const Coefficients& c, const Block& sk, const Block& sq,
                            Block& d) {
#pragma GCC unroll 4
  for (int i = 0; i < kChunk; ++i) {
    const bool real = i < live;
    const int64_t t = real ? token_at(r.tokens, b, first + i) : 0;
    const auto* v = row_of<T>(r.v, b, t, h) + column;
    auto* out = (typename T::type*)row_of<T>(r.out, b, t, h) + column;
#pragma GCC unroll 2
    for (int n = 0; n < kTileVectors; ++n) {
      vf read = sk.x[i][n] * c.prefix[i];
      vf o = sq.x[i][n] * c.prefix[i];
#pragma GCC unroll 4
      for (int j = 0; j < i; ++j) {
        read = fma(splat(c.kk[i * (i - 1) / 2 + j]), d.x[j][n], read);
        o = fma(splat(c.qk[i * (i + 1) / 2 + j]), d.x[j][n], o);
      }
      const vf value = real ? T::load(v + n * kLanes) : vf{};
      d.x[i][n] = (value - read) * c.beta[i];
      o = fma(splat(c.qk[i * (i + 1) / 2 + i]), d.x[i][n], o);
      if (real) T::store(out + n * kLanes, o);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kChunk; ++i) {
#pragma GCC unroll 2
    for (int n = 0; n < kTileVectors; ++n) d.x[i][n] *= c.suffix[i];
  }
}

// All tokens of a segment (at least one) for one tile.
template <class T>
static void run_tile(const RuleArgs& r, int64_t b, int64_t h, int64_t column, int64_t first,
                     int64_t live, const RuleScratch& s, float* tile) {
  const int64_t stride = r.Dk * kChunk, chunks = round_up(live, kChunk) / kChunk;
  Block sk, sq, d = {};
  pass<false, true>(tile, r.Dk, 1.0f, d, nullptr, s.keys, s.queries, sk, sq);
  for (int64_t c = 0;; ++c) {
    const Coefficients& scalars = s.coefficients[c];
    const float* keys = s.keys + c * stride;
    solve_chunk<T>(r, b, h, column, first + c * kChunk, live - c * kChunk, scalars, sk, sq, d);
    if (c + 1 == chunks) {
      pass<true, false>(tile, r.Dk, scalars.decay, d, keys, nullptr, nullptr, sk, sq);
      return;
    }
    pass<true, true>(tile, r.Dk, scalars.decay, d, keys, keys + stride,
                     s.queries + (c + 1) * stride, sk, sq);
  }
}

template <class T>
static void rule(const RuleArgs& r, const RuleItem& item, float* memory) {
  if (decodes(r, item.batch)) return rule_decode<T>(r, item);
  const RuleScratch s = divide(r, memory);
  const int64_t count = token_count(r.tokens, item.batch), blocks = r.Dv / kColumns;
  const int64_t tile_size = r.Dk * kColumns;
  const bool keep_tiles = r.tokens.length > kRuleSegment;
  int64_t first = 0;
  do {
    const int64_t live = count - first < kRuleSegment ? count - first : kRuleSegment;
    for (int64_t c = 0; c * kChunk < live; ++c) {
      const int64_t left = live - c * kChunk;
      pack_chunk<T>(r, item, first + c * kChunk, left < kChunk ? left : kChunk,
                    s.keys + c * r.Dk * kChunk, s.queries + c * r.Dk * kChunk, s.products[c]);
    }
    for (int64_t i = item.begin; i < item.end; ++i) {
      const int64_t h = value_head(r, item.key_head, i / blocks), column = i % blocks * kColumns;
      float* tile = s.tiles + (keep_tiles ? (i - item.begin) * tile_size : 0);
      if (i == item.begin || column == 0) {
        head_coefficients<T>(r, item.batch, h, first, live, s.products, s.coefficients);
      }
      if (first == 0) load_tile(r, item.batch, h, column, tile);
      if (live > 0) run_tile<T>(r, item.batch, h, column, first, live, s, tile);
      if (first + live >= count) store_tile(r, item.batch, h, column, tile);
    }
    first += kRuleSegment;
  } while (first < count);
}

static void rule_any_dtype(const RuleArgs& r, const RuleItem& item, float* scratch) {
  if (r.dtype == Dtype::f32) return rule<F32>(r, item, scratch);
  if (r.dtype == Dtype::f16) return rule<F16>(r, item, scratch);
  return rule<BF16>(r, item, scratch);
}

}  // namespace tmf::cpu::TMF_ISA
