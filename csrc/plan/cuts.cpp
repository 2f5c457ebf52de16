#include "cuts.h"

#include <string>

#include "call.h"

namespace tmf::plan {

const char* name_of(Stage stage) {
  switch (stage) {
    case Stage::input_norm:
      return "input_norm";
    case Stage::in_proj:
      return "in_proj";
    case Stage::conv:
      return "conv";
    case Stage::qk_gates:
      return "qk_gates";
    case Stage::rule:
      return "rule";
    case Stage::gated_norm:
      return "gated_norm";
    case Stage::out_proj:
      return "out_proj";
  }
  return "?";
}

Cuts cuts_of(std::string_view variant, bool own_norm) {
  Cuts cuts;
  if (own_norm) cuts.push_back({Stage::input_norm});
  cuts.push_back(own_norm ? std::vector{Stage::in_proj}
                          : std::vector{Stage::input_norm, Stage::in_proj});
  const std::vector middle{Stage::conv, Stage::qk_gates, Stage::rule, Stage::gated_norm};
  if (variant == "packed") {
    for (Stage s : middle) cuts.push_back({s});
    cuts.push_back({Stage::out_proj});
  } else if (variant == "core") {
    cuts.push_back(middle);
    cuts.push_back({Stage::out_proj});
  } else if (variant == "hybrid" || variant == "mega") {
    if (variant == "hybrid") cuts.push_back({});
    std::vector<Stage>& rest = cuts.back();
    rest.insert(rest.end(), middle.begin(), middle.end());
    rest.push_back(Stage::out_proj);
  } else {
    throw Refusal("variant", "'" + std::string(variant) + "'", "packed, core, hybrid, mega");
  }
  return cuts;
}

}  // namespace tmf::plan
