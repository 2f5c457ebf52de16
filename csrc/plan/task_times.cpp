#include "task_times.h"

#include <algorithm>

#include "cost.h"
#include "tasks.h"

namespace tmf::plan {
namespace {

struct Load {
  uint64_t bytes;
  double cycles;
};

// Of a task, without what it writes.
Load load_of(const TaskRecord& r, const LayerCall& c, uint32_t nt) {
  const uint64_t es = size_of(c.io), entries = std::min(kTaskChannels, c.conv_dim());
  const auto projection = [&](uint64_t k) {
    return Load{nt * kTile * k * es, projection_cycles(k, 1, nt, false, kPassRows)};
  };
  switch (r.stage) {
    case kTaskInProj:
      return projection(c.hidden);
    case kTaskHead:
      return {c.state_in ? 4 * c.head_k_dim * kHeadColumns : 0,
              core_cycles(c, c.tokens, kHeadColumns)};
    case kTaskGatedNorm:
      return {2 * c.tokens * c.head_v_dim * es,
              static_cast<double>(ceil_div(c.tokens, 8)) * head_cycles(c.head_v_dim)};
    case kTaskConvState:
      return {c.conv_in ? entries * (c.conv_width - std::min(c.tokens, c.conv_width)) * es : 0, 0};
    default:
      return projection(c.value_dim());
  }
}

}  // namespace

void add_task_times(Program& program, const LayerCall& call, const DeviceSpec& device) {
  for (Dispatch& d : program.dispatches) {
    if (!d.tasks) continue;
    const uint32_t nt = tile_number(d.kernel.name.substr(d.kernel.name.rfind("nt")), 't');
    auto tasks = std::make_shared<TaskProgram>(*d.tasks);
    std::vector<uint64_t> bytes(tasks->records.size());
    for (const Touch& t : tasks->touches) {
      if (t.write) bytes[t.task] += t.rows * t.bytes;
    }
    const double workers = tasks->workers;
    const double bandwidth = device.bandwidth_gb_s * 1e3 / workers;
    const double clock = device.clock_ghz * 1e3 / std::max(1.0, workers / device.cores);
    for (size_t i = 0; i < bytes.size(); ++i) {
      const Load load = load_of(tasks->records[i], call, nt);
      tasks->times_us.push_back(
          std::max(static_cast<double>(load.bytes + bytes[i]) / bandwidth, load.cycles / clock));
    }
    d.tasks = std::move(tasks);
  }
}

}  // namespace tmf::plan
