// The gated delta rule for one token: the state is streamed once, in its own storage order.
//
//   d = beta (v - a S^T k),  o = a S^T q + (q . k) d,  S <- a S + k d^T
//
// A few columns at a time are read twice, the second time from the first-level cache.
#pragma once

#include "cpu/rule_rows_isa.h"
#include "cpu/rule_state_isa.h"
#include "cpu/simd.h"

namespace tmf::cpu::TMF_ISA {

struct DecodeHead {
  float k[256], q[256];  // normalised, q scaled
  float qk, decay, beta;
};

// d and o of one vector of columns.
template <class T>
TMF_INLINE vf decode_columns(const DecodeHead& head, vf sk, vf sq, const typename T::type* v,
                             typename T::type* out) {
  const vf d = (T::load(v) - sk * head.decay) * head.beta;
  T::store(out, fma(splat(head.qk), d, sq * head.decay));
  return d;
}

// kLanes columns, each contiguous along Dk.
template <class T>
TMF_INLINE void decode_key_major(const DecodeHead& head, int64_t rows, const float* in,
                                 int64_t in_stride, float* out_state, int64_t out_stride,
                                 const typename T::type* v, typename T::type* out) {
  vf sk[kLanes], sq[kLanes];
#pragma GCC unroll 4
  for (int i = 0; i < kLanes; i += 4) {
    vf k_sum[4] = {}, q_sum[4] = {};
    for (int64_t row = 0; row < rows; row += kLanes) {
      const vf k = load(head.k + row), q = load(head.q + row);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const vf s = load(in + (i + j) * in_stride + row);
        k_sum[j] = fma(s, k, k_sum[j]);
        q_sum[j] = fma(s, q, q_sum[j]);
      }
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      sk[i + j] = k_sum[j];
      sq[i + j] = q_sum[j];
    }
  }
  float d[kLanes];
  store(d, decode_columns<T>(head, sum_rows(sk), sum_rows(sq), v, out));
  for (int i = 0; i < kLanes; i += 4) {
    vf scaled[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) scaled[j] = splat(d[i + j]);
    for (int64_t row = 0; row < rows; row += kLanes) {
      const vf k = load(head.k + row);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const vf s = load(in + (i + j) * in_stride + row) * head.decay;
        store(out_state + (i + j) * out_stride + row, fma(k, scaled[j], s));
      }
    }
  }
}

// kVectors vectors of columns, contiguous along Dv.
template <class T, int kVectors>
TMF_INLINE void decode_value_major(const DecodeHead& head, int64_t rows, const float* in,
                                   int64_t in_stride, float* out_state, int64_t out_stride,
                                   const typename T::type* v, typename T::type* out) {
  vf k_sum[kVectors] = {}, q_sum[kVectors] = {};
  for (int64_t row = 0; row < rows; ++row) {
    const vf k = splat(head.k[row]), q = splat(head.q[row]);
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) {
      const vf s = load(in + row * in_stride + n * kLanes);
      k_sum[n] = fma(s, k, k_sum[n]);
      q_sum[n] = fma(s, q, q_sum[n]);
    }
  }
  vf d[kVectors];
#pragma GCC unroll 4
  for (int n = 0; n < kVectors; ++n) {
    d[n] = decode_columns<T>(head, k_sum[n], q_sum[n], v + n * kLanes, out + n * kLanes);
  }
  for (int64_t row = 0; row < rows; ++row) {
    const vf k = splat(head.k[row]);
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) {
      const vf s = load(in + row * in_stride + n * kLanes) * head.decay;
      store(out_state + row * out_stride + n * kLanes, fma(k, d[n], s));
    }
  }
}

template <class T>
TMF_INLINE void decode_head(const RuleArgs& r, const DecodeHead& head, int64_t b, int64_t t,
                            int64_t h, int64_t column, int64_t last) {
  const float* in = state_at(r.state_in, b, h, 0);
  float* out_state = state_at(r.state_out, b, h, 0);
  const auto* v = row_of<T>(r.v, b, t, h);
  auto* out = (typename T::type*)row_of<T>(r.out, b, t, h);
  if (r.state_in.stride[3] != 1) {
    const int64_t in_stride = r.state_in.stride[3], out_stride = r.state_out.stride[3];
    for (; column < last; column += kLanes) {
      decode_key_major<T>(head, r.Dk, in + column * in_stride, in_stride,
                          out_state + column * out_stride, out_stride, v + column, out + column);
    }
    return;
  }
  const int64_t in_stride = r.state_in.stride[2], out_stride = r.state_out.stride[2];
  for (; column + 4 * kLanes <= last; column += 4 * kLanes) {
    decode_value_major<T, 4>(head, r.Dk, in + column, in_stride, out_state + column, out_stride,
                             v + column, out + column);
  }
  for (; column < last; column += kLanes) {
    decode_value_major<T, 1>(head, r.Dk, in + column, in_stride, out_state + column, out_stride,
                             v + column, out + column);
  }
}

template <class T>
static void rule_decode(const RuleArgs& r, const RuleItem& item) {
  const int64_t b = item.batch, t = token_at(r.tokens, b, 0);
  DecodeHead head;
  widen_row<T>(row_of<T>(r.k, b, t, item.key_head), r.Dk, r.l2norm, 1.0f, head.k);
  widen_row<T>(row_of<T>(r.q, b, t, item.key_head), r.Dk, r.l2norm, r.scale, head.q);
  vf product = {};
  for (int64_t i = 0; i < r.Dk; i += kLanes)
    product = fma(load(head.k + i), load(head.q + i), product);
  head.qk = sum(product);
  const int64_t blocks = r.Dv / kColumns;
  for (int64_t i = item.begin; i < item.end;) {
    const int64_t h = value_head(r, item.key_head, i / blocks), column = i % blocks;
    const int64_t left = item.end - i, n = left < blocks - column ? left : blocks - column;
    head.decay = exp(splat(*row_of<F32>(r.g, b, t, h)))[0];
    head.beta = beta_at<T>(r, b, t, h);
    decode_head<T>(r, head, b, t, h, column * kColumns, (column + n) * kColumns);
    i += n;
  }
}

TMF_INLINE bool decodes(const RuleArgs& r, int64_t batch) {
  const View &in = r.state_in, &out = r.state_out;
  return token_count(r.tokens, batch) == 1 && in.data != nullptr &&
         (in.stride[3] == 1) == (out.stride[3] == 1);
}

}  // namespace tmf::cpu::TMF_ISA
