// A variant as a list of cuts: which stages share a dispatch.
#pragma once

#include <string_view>
#include <vector>

namespace tmf::plan {

enum class Stage { input_norm, in_proj, conv, qk_gates, rule, gated_norm, out_proj };

const char* name_of(Stage stage);

using Cuts = std::vector<std::vector<Stage>>;

// "packed", "core", "hybrid" or "mega"; throws Refusal. `own_norm`: the row norm is a dispatch of
// its own instead of a part of the projection (the bits are the same).
Cuts cuts_of(std::string_view variant, bool own_norm = false);

// A cut that ends with the output projection and begins before it is one persistent dispatch.
inline bool persistent(const Cuts& cuts) { return cuts.back().size() > 1; }

}  // namespace tmf::plan
