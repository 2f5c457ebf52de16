// Plans of a thread's recent calls, kept: a decoding loop plans once.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plan/call.h"
#include "plan/chunks.h"

namespace tmf {

// A model has one or two shapes of layers, and a decoding loop one number of rows.
constexpr size_t kPlans = 16;  // that are kept

using Plan = std::vector<plan::ChunkProgram>;  // the programs of a call, in order

// All that a plan of the layer follows from.
struct PlanKey {
  plan::LayerCall call;
  std::string device;
  uint32_t msl = 0;
  std::string variant;
  std::string geometry;  // changes of the device's own

  bool operator==(const PlanKey&) const = default;
};

// The plan of that key, made if this thread has none of it; it outlives its place in the cache.
std::shared_ptr<const Plan> cached_plan(const PlanKey& key, const std::function<Plan()>& make);

}  // namespace tmf
