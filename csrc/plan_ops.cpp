// Ops that show plans and what the planner knows: text in, text out; nothing runs.
#include <torch/library.h>

#include <sstream>

#include "errors.h"
#include "plan/check.h"
#include "plan/cost.h"
#include "plan/listing.h"
#include "plan/persistent.h"
#include "plan/task_times.h"
#include "recorder.h"
#include "runner.h"
#include "shader_layer.h"
#include "shader_text.h"

namespace tmf {

std::tuple<std::string, std::string, int64_t> described_layer(
    const char* op, const LayerArgs& args, const StatePair& conv, const StatePair& recurrent,
    std::string_view device, std::string_view geometry, bool own_norm) {
  try {
    const plan::DeviceSpec spec = plan::parse_device(device);
    const plan::LayerCall call = layer_call(args, conv, recurrent);
    const plan::Geometry chosen = plan::change(plan::geometry_for(spec, call.io), geometry);
    const plan::Cuts cuts = plan::cuts_of(name_of(args.variant), own_norm || chosen.own_norm);
    plan::plan_chunks(call, spec, chosen, cuts);  // refuses what the op refuses
    plan::Program program = plan::plan_layer(call, spec, chosen, cuts);
    plan::add_touches(program, call);
    plan::add_task_times(program, call, spec);
    return {plan::to_listing(program), record(program),
            static_cast<int64_t>(plan::minimum_bytes(call))};
  } catch (const plan::Refusal& r) {
    refuse(op, r.argument, r.got, r.accepted);
  }
}

namespace {

std::tuple<std::string, std::string> plan_linear(int64_t rows, int64_t in_features,
                                                 int64_t out_features, at::ScalarType dtype,
                                                 std::string_view device,
                                                 std::string_view geometry) {
  const char* op = "_plan_linear";
  try {
    const plan::DeviceSpec spec = plan::parse_device(device);
    const plan::Io io = io_of(dtype);
    const plan::Program program =
        plan::plan_linear({static_cast<uint64_t>(rows), static_cast<uint64_t>(in_features),
                           static_cast<uint64_t>(out_features), io},
                          spec, plan::change(plan::geometry_for(spec, io), geometry));
    return {plan::to_listing(program), record(program)};
  } catch (const plan::Refusal& r) {
    refuse(op, r.argument, r.got, r.accepted);
  }
}

std::string set_geometry(std::string_view geometry) {
  try {
    return override_geometry(geometry);
  } catch (const plan::Refusal& r) {
    refuse("_override_geometry", r.argument, r.got, r.accepted);
  }
}

// Batch and tokens of each chunk that a call runs as, one a line.
std::string chunks(int64_t batch, int64_t tokens, std::string_view device) {
  const char* op = "_chunks";
  const auto size = [&](const char* name, int64_t value) {
    if (value < 1) refuse(op, name, text(value), "at least 1");
    return static_cast<uint64_t>(value);
  };
  const uint64_t b = size("batch", batch), t = size("tokens", tokens);
  try {
    std::ostringstream out;
    for (const plan::Chunk& c : plan::chunks_of(b, t, plan::parse_device(device).chunk_rows)) {
      out << c.batch << ' ' << c.tokens << '\n';
    }
    return out.str();
  } catch (const plan::Refusal& r) {
    refuse(op, r.argument, r.got, r.accepted);
  }
}

// What is wrong with a program, one line each; empty if nothing is.
std::string check_program(std::string_view listing) {
  const char* op = "_check_program";
  try {
    std::string out;
    for (const std::string& line : plan::check(plan::from_listing(listing))) out += line + "\n";
    return out;
  } catch (const plan::Refusal& r) {
    refuse(op, r.argument, r.got, r.accepted);
  }
}

// Name, cores, GB/s, GHz, MSL, threadgroup memory, lanes, row threshold, limit of a dispatch in
// microseconds, rows of a chunk, bytes of the working set; separated by tabs.
std::string device_line(const plan::DeviceSpec& d) {
  std::ostringstream out;
  out << d.name << '\t' << d.cores << '\t' << d.bandwidth_gb_s << '\t' << d.clock_ghz << '\t'
      << d.msl << '\t' << d.threadgroup_memory << '\t' << d.lanes << '\t' << d.row_threshold << '\t'
      << d.dispatch_limit_us << '\t' << d.chunk_rows << '\t' << d.working_set_bytes << '\n';
  return out.str();
}

std::string devices() {
  std::string out;
  for (const plan::DeviceSpec& d : plan::devices()) out += device_line(d);
  return out;
}

std::string parse_device(std::string_view text) {
  try {
    return device_line(plan::parse_device(text));
  } catch (const plan::Refusal& r) {
    refuse("_parse_device", r.argument, r.got, r.accepted);
  }
}

std::string device_for(std::string_view type) {
  return device_line(current_device(c10::Device(std::string(type)).type()));
}

std::string shader_text(std::string_view family) {
  try {
    return std::string(shader_family(family).text);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, "mps_fusion::_shader_text: ", error.what());
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(mps_fusion, CompositeExplicitAutograd, m) {
  m.impl("_plan_linear", plan_linear);
  m.impl("_chunks", chunks);
  m.impl("_override_geometry", set_geometry);
  m.impl("_check_program", check_program);
  m.impl("_devices", devices);
  m.impl("_parse_device", parse_device);
  m.impl("_current_device", device_for);
  m.impl("_shader_text", shader_text);
}

}  // namespace tmf
