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
  if (own_norm) {
    cuts = {{Stage::input_norm}, {Stage::in_proj}};
  } else {
    cuts = {{Stage::input_norm, Stage::in_proj}};
  }
  if (variant == "packed") {
    for (Stage s : {Stage::conv, Stage::qk_gates, Stage::rule, Stage::gated_norm}) {
      cuts.push_back({s});
    }
  } else if (variant == "core") {
    cuts.push_back({Stage::conv, Stage::qk_gates, Stage::rule, Stage::gated_norm});
  } else {
    throw Refusal("variant", "'" + std::string(variant) + "'", "packed, core");
  }
  cuts.push_back({Stage::out_proj});
  return cuts;
}

}  // namespace tmf::plan
