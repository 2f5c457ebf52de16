// The program of a persistent dispatch: which task waits for what. Pure functions of the call, the
// geometry and the cuts; plain data.
#pragma once

#include <cstdint>
#include <vector>

#include "call.h"
#include "shaders/include/tasks.h"

namespace tmf::plan {

// What a task touches of a buffer that the dispatch writes: `rows` runs of `bytes`, `pitch` apart.
struct Touch {
  uint32_t task;   // ticket
  int32_t buffer;  // of the program
  bool write;
  int32_t wait;  // the only one of the task's waits that the access is behind; -1: all of them
  uint64_t offset, rows, pitch, bytes;
};

// Records stand in ticket order: every record behind those it waits for.
struct TaskProgram {
  std::vector<TaskRecord> records;
  std::vector<TaskEdge> edges;  // waits and signals; records may share them
  uint32_t counters = 0;
  uint32_t workers = 0;
  // For whoever checks or draws the program; else empty.
  std::vector<Touch> touches;
  std::vector<double> times_us;  // by ticket, see task_times.h

  uint64_t record_bytes() const { return records.size() * sizeof(TaskRecord); }
  uint64_t edge_bytes() const { return edges.size() * sizeof(TaskEdge); }
};

// A task of the convolution state: as many channels as a worker has threads.
constexpr uint64_t kTaskChannels = 256;

// The first of `steps` (32 k each) of a segment of K.
constexpr uint64_t segment_begin(uint64_t steps, uint64_t s) { return steps * s / kSegments; }

// `in_proj`: the input projection is part of the program. `nt`: tiles of a projection task.
// Order: input tiles by key head (gates first; then q, k, and v, z of each of its value heads), the
// parts of a head `workers` records behind the last tile that they need, so that nobody waits, its
// gated norm as far behind them; then the conv state, which fills the gap to the last heads, and
// the last gated norms; then the output tiles. The passes of a tile follow each other, while its
// weights are near.
TaskProgram task_program(const LayerCall& call, uint32_t nt, uint32_t workers, bool in_proj);

}  // namespace tmf::plan
