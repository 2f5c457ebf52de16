// What the stages between the projections share: switches, columns of Y, head map, token order.
// Y[B*T][y_stride] holds, by columns, q, k, v, z, b, a.
#pragma once
#include "abi.h"
#include "math.h"

constant bool kMask [[function_constant(300)]];             // a mask is given
constant bool kConvGiven [[function_constant(301)]];        // a conv state is given, else zeros
constant bool kStateGiven [[function_constant(302)]];       // a recurrent state is, else zeros
constant bool kTiledHeads [[function_constant(303)]];       // key head h % Hk, else h / (Hv / Hk)
constant bool kKeysAdjacent [[function_constant(304)]];     // state in: Dk has stride 1, else Dv
constant bool kKeysAdjacentOut [[function_constant(305)]];  // the same of the state out
constant bool kFloatA [[function_constant(306)]];           // A_log is float, else the model dtype
constant bool kFloatDt [[function_constant(307)]];          // the same of dt_bias

// Tokens that a threadgroup has in its memory at a time.
constant constexpr uint BLOCK = 8;

struct Columns {
  uint k, v, z, b, a;  // q is column 0
};
template <int DK, int DV>
inline Columns columns_of(constant GdnArgs& args) {
  const uint keys = args.k_heads * DK, values = args.v_heads * DV;
  Columns c;
  c.k = keys;
  c.v = 2 * keys;
  c.z = c.v + values;
  c.b = c.z + values;
  c.a = c.b + args.v_heads;
  return c;
}
inline uint key_head(constant GdnArgs& args, uint h) {
  return kTiledHeads ? h % args.k_heads : h / (args.v_heads / args.k_heads);
}
inline bool live(constant GdnArgs& args, device const uchar* mask, uint b, uint t) {
  return !kMask || mask[long(b) * args.mask_batch + long(t) * args.mask_token] != 0;
}
