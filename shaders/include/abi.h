// Arguments of the kernels as the host writes them, included by C++ and by Metal: plain 32-bit
// fields, no padding, a size that is a multiple of 16 bytes. Strides are in elements.
#pragma once

// Y[rows][n] = X[rows][k] W[n][k]^T, and the row norm that may precede it.
struct ProjectionArgs {
  unsigned int k;         // columns of the weight, a multiple of 32
  unsigned int n;         // outputs that exist; the last tile may be padded
  unsigned int tiles;     // tiles of 16 outputs
  unsigned int rows;      // rows of X and Y
  unsigned int x_stride;  // from row to row of X
  unsigned int y_stride;  // from row to row of Y
  unsigned int r_stride;  // from row to row of the residual
  unsigned int groups;    // threadgroups that make tiles; those behind them write the conv state
  float eps;              // of the row norm
  unsigned int reserved0, reserved1, reserved2;
};

// The stages between the projections, and the update of the conv state.
struct GdnArgs {
  unsigned int batch;
  unsigned int tokens;  // of a sequence, in the rows of Y and of all stage buffers
  unsigned int first;   // first token of this dispatch
  unsigned int count;   // tokens of this dispatch
  unsigned int k_heads;
  unsigned int v_heads;
  unsigned int conv_channels;  // conv_dim, the columns of q, k and v
  unsigned int conv_taps;      // K, 1 to 4
  unsigned int conv_width;     // W, entries of a conv state, at least K - 1
  unsigned int y_stride;       // from row to row of Y
  int mask_batch, mask_token;
  int conv_in_batch, conv_in_channel, conv_in_time;
  int conv_out_batch, conv_out_channel, conv_out_time;
  int state_in_batch, state_in_head;
  int state_out_batch, state_out_head;
  float eps;      // of the gated norm
  float q_scale;  // 1 / sqrt(Dk)
};
