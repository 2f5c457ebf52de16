// One packed weight tile, 16 outputs x 16 k, four words a lane, in the device's own operand order:
// a loaded word is a matrix operand without a shuffle. All that differs between devices is here.
//   tile_row, tile_pair     which of the 8 rows of X, and which pair of k of 8, this lane holds
//   tile_multiply           sum += tile x the two words of X at k and k + 8
//   tile_output, tile_value, tile_value_row   the i-th of the lane's four sums: for which output
//   and
//                           which row of X, and the sum itself
#pragma once
#ifdef MSL_GPU
struct TileSum {
  float4 d;
};
static inline uint tile_row(uint lane) { return msl::native_row(lane); }
static inline uint tile_pair(uint lane) { return msl::native_pair(lane); }
static inline void tile_zero(thread TileSum& s) { s.d = float4(0.0f); }
static inline void tile_multiply(thread TileSum& s, uint4 w, uint2 x) {
  msl::native_mma<bfloat>(s.d, w, x);
}
static inline float tile_value(thread const TileSum& s, uint i) { return s.d[i]; }
static inline uint tile_output(uint lane, uint i) { return i / 2 * 8 + tile_row(lane); }
static inline uint tile_value_row(uint lane, uint i) { return 2 * tile_pair(lane) + i % 2; }
#else
struct TileSum {
  simdgroup_float8x8 d[2];
};
static inline uint tile_row(uint lane) { return ((lane >> 2) & 4) + ((lane >> 1) & 3); }
static inline uint tile_pair(uint lane) { return ((lane >> 2) & 2) + (lane & 1); }
static inline void tile_zero(thread TileSum& s) {
  s.d[0] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  s.d[1] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
}
static inline simdgroup_bfloat8x8 tile_fragment(uint word) {
  simdgroup_bfloat8x8 f;
  f.thread_elements() = as_type<bfloat2>(word);
  return f;
}
static inline void tile_multiply(thread TileSum& s, uint4 w, uint2 x) {
  simdgroup_multiply_accumulate(s.d[0], tile_fragment(x.x), tile_fragment(w.x), s.d[0]);
  simdgroup_multiply_accumulate(s.d[1], tile_fragment(x.x), tile_fragment(w.y), s.d[1]);
  simdgroup_multiply_accumulate(s.d[0], tile_fragment(x.y), tile_fragment(w.z), s.d[0]);
  simdgroup_multiply_accumulate(s.d[1], tile_fragment(x.y), tile_fragment(w.w), s.d[1]);
}
static inline float tile_value(thread TileSum& s, uint i) {
  return s.d[i / 2].thread_elements()[i % 2];
}
static inline uint tile_output(uint lane, uint i) {
  return i / 2 * 8 + 2 * tile_pair(lane) + i % 2;
}
static inline uint tile_value_row(uint lane, uint i) { return tile_row(lane); }
#endif
