#include "persistent.h"

#include "cost.h"

namespace tmf::plan {
namespace {

constexpr uint64_t kWorkerThreads = 256;

uint32_t u32(uint64_t v) { return static_cast<uint32_t>(v); }

ProjectionArgs projection_args(const LayerCall& c, uint64_t n, uint64_t k, uint64_t y_stride) {
  return {.k = u32(k),
          .n = u32(n),
          .tiles = u32(padded_rows(n) / kTile),
          .rows = u32(c.rows()),
          .x_stride = u32(k),
          .y_stride = u32(y_stride),
          .r_stride = u32(n),
          .groups = 0,
          .eps = c.eps,
          .reserved0 = 0,
          .reserved1 = 0,
          .reserved2 = 0};
}

// Memory of a worker: that of a head and that of a projection task, side by side.
uint64_t worker_memory(const LayerCall& c, uint32_t nt) {
  const uint64_t head = 64 * c.head_k_dim + 32 * kHeadColumns + 128;
  const uint64_t projection = kSegments * 8 * (16 * nt + 4 + 1) * 4;
  return head + projection + 4 * kSegments * 8 * 4 + 48;
}

// Core cycles of all tasks together.
double all_cycles(const LayerCall& c, const Persistent& p, uint32_t nt) {
  const uint64_t passes = ceil_div(c.rows(), kPassRows);
  const auto projection = [&](uint64_t k, uint64_t n, bool norm) {
    return static_cast<double>(passes * padded_rows(n) / kTile / nt) *
           projection_cycles(k, 1, nt, norm, c.rows());
  };
  const double in = p.in_proj ? projection(c.hidden, c.in_features(), p.norm.buffer >= 0) : 0;
  const uint64_t parts = c.batch * c.v_heads * (c.head_v_dim / kHeadColumns);
  return in + static_cast<double>(parts) * core_cycles(c, c.tokens, kHeadColumns) +
         projection(c.value_dim(), c.hidden, false);
}

}  // namespace

void add_persistent(Builder& builder, const LayerCall& c, const DeviceSpec& device,
                    const Geometry& geometry, const Persistent& p) {
  if (device.msl < kPersistentLevel) {
    throw Refusal("device: msl", std::to_string(device.msl),
                  "320 (macOS 15) or later for a persistent kernel");
  }
  const Buffers& b = p.buffers;
  const uint64_t es = size_of(c.io), rows = c.rows(), passes = ceil_div(rows, kPassRows);
  const uint32_t nt = tile_number(geometry.worker, 't');
  TaskProgram tasks = task_program(c, nt, worker_count(geometry, device), p.in_proj);
  const uint32_t workers = tasks.workers;
  const auto table = [&](const char* name, uint64_t bytes) {
    return View{builder.buffer(name, bytes, Role::control, true), 0, bytes};
  };
  const View records = table("tasks", tasks.record_bytes() + tasks.edge_bytes());
  const View counters =
      table("counters", (kCounterFirst + uint64_t{kCounterStride} * tasks.counters) * 4);
  const bool norm = p.norm.buffer >= 0, residual = p.residual.buffer >= 0;
  const uint64_t y = rows * c.in_features() * es, g = rows * c.value_dim() * es;
  const uint64_t state = c.batch * c.v_heads * c.head_k_dim * c.head_v_dim * 4;
  // Columns of the conv state that are kept, and inputs that replace the others.
  const uint64_t entry = c.batch * c.conv_dim() * es, fresh = std::min(c.tokens, c.conv_width);
  const uint64_t kept = entry * (c.conv_width - fresh) + entry * (c.conv_taps - 1);
  const double waves = static_cast<double>(ceil_div(workers, device.cores));
  const double cycles = all_cycles(c, p, nt) / std::min(workers, device.cores) / waves;
  const SlotLayout slots = c.slots.value_or(SlotLayout{});
  const TaskArgs args{.tasks = u32(tasks.records.size()),
                      .spin_limit = geometry.spins,
                      .conv_slot = u32(slots.conv),
                      .state_slot = u32(slots.state)};
  const View edges{records.buffer, tasks.record_bytes(), tasks.edge_bytes()};
  builder
      .kernel(p.in_proj ? "layer" : "conv+out_proj", "persistent",
              std::string("tmf_persistent_") + name_of(c.io) + "_f32_dk" +
                  std::to_string(c.head_k_dim) + "dv" + std::to_string(c.head_v_dim) +
                  geometry.worker + "__grid")
      .constants({{kNorm, norm},
                  {kResidual, residual},
                  {kMask, c.mask.has_value()},
                  {kConvGiven, c.conv_in.has_value()},
                  {kStateGiven, c.state_in.has_value()},
                  {kTiledHeads, c.tiled_heads},
                  {kKeysAdjacent, c.state_in && c.state_in->keys_adjacent},
                  {kKeysAdjacentOut, c.state_out.keys_adjacent},
                  {kFloatA, c.float_a},
                  {kFloatDt, c.float_dt},
                  {kInProjection, p.in_proj},
                  {kSlots, c.slots.has_value()},
                  {kTimes, geometry.times}})
      .read(p.w_in, packed_elements(c.in_features(), c.hidden) * es * passes, p.in_proj)
      .read(p.x, rows * c.hidden * es, p.in_proj)
      .read(p.norm, c.hidden * es, norm)
      .read(p.w_out, packed_elements(c.hidden, c.value_dim()) * es * passes)
      .read(p.residual, rows * c.hidden * es, residual)
      .read(b.conv_weight, b.conv_weight.extent)
      .read(b.conv_in, kept, c.conv_in.has_value())
      .write(b.conv_out, entry * c.conv_width)
      .read(b.a_log, b.a_log.extent)
      .read(b.dt_bias, b.dt_bias.extent)
      .read(b.norm_weight, b.norm_weight.extent)
      .read(b.state_in, state, c.state_in.has_value())
      .write(b.state_out, state)
      .read(b.mask, 2 * rows, c.mask.has_value());
  if (p.in_proj) {
    builder.made_inside(b.y, y, y + entry * fresh);
  } else {
    builder.read(b.y, y + entry * fresh);
  }
  builder.made_inside(b.g, g, g)
      .made_inside({builder.scratch("O", g), 0, g}, g, g)
      .write(p.output, rows * c.hidden * es)
      .read({records.buffer, 0, tasks.record_bytes()}, tasks.record_bytes())
      .read(edges, tasks.edge_bytes())
      .coordination(counters)
      .coordination(p.control)
      .arguments(projection_args(c, c.in_features(), c.hidden, y_stride(c)))
      .arguments(projection_args(c, c.hidden, c.value_dim(), c.hidden))
      .arguments(gdn_args(c, c.batch, 0, c.tokens))
      .arguments(args);
  if (geometry.times) {
    const uint64_t n = tasks.records.size(), simds = kWorkerThreads / 32;
    const View times = table("times", n * (sizeof(TaskTime) + simds * sizeof(TaskWait)));
    const uint64_t waits = n * sizeof(TaskTime);
    builder.coordination({times.buffer, 0, waits})
        .coordination({times.buffer, waits, times.extent - waits});
  }
  builder.tasks(std::move(tasks))
      .launch({workers + (geometry.times ? 1 : 0)}, kWorkerThreads, worker_memory(c, nt), cycles);
}

LayerCall with_new_states(const LayerCall& c) {
  LayerCall call = c;
  const auto i64 = [](uint64_t v) { return static_cast<int64_t>(v); };
  const uint64_t head = c.head_k_dim * c.head_v_dim;
  call.conv_out = {i64(c.conv_dim() * c.conv_width), i64(c.conv_width), 1};
  call.state_out = {i64(c.v_heads * head), i64(head), c.state_out.keys_adjacent};
  call.in_place = false;
  return call;
}

void add_commit(Builder& builder, const LayerCall& c, const View& control, const View& conv,
                const View& state, const Buffers& to) {
  const CommitArgs args{.batch = u32(c.batch),
                        .channels = u32(c.conv_dim()),
                        .width = u32(c.conv_width),
                        .conv_batch = static_cast<int32_t>(c.conv_out.batch),
                        .conv_channel = static_cast<int32_t>(c.conv_out.channel),
                        .conv_time = static_cast<int32_t>(c.conv_out.time),
                        .heads = u32(c.v_heads),
                        .head_elements = u32(c.head_k_dim * c.head_v_dim),
                        .state_batch = static_cast<int32_t>(c.state_out.batch),
                        .state_head = static_cast<int32_t>(c.state_out.head),
                        .reserved0 = 0,
                        .reserved1 = 0};
  const uint64_t words = c.batch * c.v_heads * c.head_k_dim * c.head_v_dim / 4;
  const uint64_t entries = c.batch * c.conv_dim() * c.conv_width;
  builder
      .kernel("commit", "commit", std::string("tmf_commit_") + name_of(c.io) + "_f32_n256__thread")
      .coordination(control)
      .read(conv, conv.extent)
      .read(state, state.extent)
      .write(to.conv_out, conv.extent)
      .write(to.state_out, state.extent)
      .arguments(args)
      .launch({ceil_div(std::max(words, entries), 256)}, 256, 0, 0);
}

}  // namespace tmf::plan
