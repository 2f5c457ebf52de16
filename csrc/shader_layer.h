// The layer, or one linear, through our shaders: arguments -> plan -> scratch -> runner.
#pragma once

#include "op_args.h"
#include "plan/layer.h"
#include "stages.h"

namespace tmf {

// The call in the planner's terms. The states are as the kernels take them, see `shader_states`.
plan::LayerCall layer_call(const LayerArgs& args, const StatePair& conv,
                           const StatePair& recurrent);

// -> output (B, T, H); the states are left in `conv.out` and `recurrent.out`. The variant is one
// that resolve() let through, for a device that has a runner.
at::Tensor run_shader_layer(const char* op, const LayerArgs& args, Variant variant,
                            const StatePair& conv, const StatePair& recurrent);

// x (..., K) * weight (out_features, K)^T, packed.
at::Tensor run_packed_linear(const char* op, const at::Tensor& x, const at::Tensor& weight,
                             int64_t out_features, std::string_view lanes);

// The program of a call as text, the calls that an encoder gets, the least bytes of such a call.
std::tuple<std::string, std::string, int64_t> described_layer(
    const char* op, const LayerArgs& args, const StatePair& conv, const StatePair& recurrent,
    std::string_view device, std::string_view geometry, bool own_norm);

// Changes of the launch geometry of all calls to come, as plan::change takes them, for
// measurements; returns the one before. Throws plan::Refusal.
std::string override_geometry(std::string_view text);

// What a call on that device is planned with.
plan::Geometry current_geometry(const plan::DeviceSpec& device, plan::Io io);

plan::Io io_of(c10::ScalarType type);

}  // namespace tmf
