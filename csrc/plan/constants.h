// Function constants of the shaders by id; a test compares them with the text of the shaders.
#pragma once

#include <cstdint>

namespace tmf::plan {

enum FunctionConstant : uint32_t {
  kNorm = 200,
  kResidual = 201,
  kWritesConvState = 202,
  kMask = 300,
  kConvGiven = 301,
  kStateGiven = 302,
  kTiledHeads = 303,
  kKeysAdjacent = 304,
  kKeysAdjacentOut = 305,
  kFloatA = 306,
  kFloatDt = 307,
  kInProjection = 400,
  kSlots = 401,
  kTimes = 402,
};

}  // namespace tmf::plan
