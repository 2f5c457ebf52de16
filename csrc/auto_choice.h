// What `auto` runs where: one table, with the reason of each row. TMF_AUTO=NAME puts a variant in
// front of it, for any device: `auto` runs it where it can.
#pragma once

#include <string>
#include <string_view>

#include "plan/devices.h"
#include "variant.h"

namespace tmf {

struct Choice {
  Variant variant;
  std::string reason;
};

// A persistent launch has failed: where `auto` would choose a persistent variant it takes `packed`
// from now on, and says so once.
void avoid_persistent();

// The first row of the table whose variant runs this call, else `stock`. `device`: the one that the
// call would run on, or that somebody asks about.
Choice choose(const Capability& capability, const plan::DeviceSpec& device);

// The table as text with the row of TMF_AUTO, a line a row, fields separated by tabs: device, most
// rows (0: any), variant, receipt, reason.
std::string choices();

}  // namespace tmf
