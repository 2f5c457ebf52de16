#include "tasks.h"

#include <algorithm>

namespace tmf::plan {
namespace {

uint32_t u32(uint64_t v) { return static_cast<uint32_t>(v); }

class Tasks {
 public:
  Tasks(const LayerCall& call, uint32_t nt, uint32_t workers, bool in_proj)
      : c_(call), nt_(nt), in_proj_(in_proj), passes_(ceil_div(call.rows(), kPassRows)) {
    program_.workers = workers;
    program_.counters = u32(rules_done(call.v_heads, 0));
  }

  TaskProgram run() {
    if (in_proj_) inputs();
    for (uint64_t h = 0; h < c_.v_heads && !in_proj_; ++h) due_.push_back({kTaskHead, h, 0});
    while (heads_left_ > 0) next_due();
    conv_state();
    while (next_due_ < due_.size()) next_due();
    outputs();
    program_.workers = std::min(program_.workers, u32(program_.records.size()));
    return std::move(program_);
  }

 private:
  // What the columns of Y are made for: key heads (q and k), value heads (v and z), gates (b, a).
  uint64_t groups() const { return c_.k_heads + c_.v_heads + 1; }
  uint64_t value_group(uint64_t h) const { return c_.k_heads + h; }
  uint64_t gates_group() const { return c_.k_heads + c_.v_heads; }
  uint64_t key_head(uint64_t h) const {
    return c_.tiled_heads ? h % c_.k_heads : h / (c_.v_heads / c_.k_heads);
  }
  // Tasks that make the columns of a group for one pass.
  uint64_t group_tasks(uint64_t group) const {
    const uint64_t columns = group < c_.k_heads      ? 2 * c_.head_k_dim
                             : group < gates_group() ? 2 * c_.head_v_dim
                                                     : padded_rows(2 * c_.v_heads);
    return columns / kTile / nt_;
  }
  uint64_t made(uint64_t group, uint64_t pass) const { return group * passes_ + pass; }
  uint64_t heads_done(uint64_t segment, uint64_t pass) const {
    return ((in_proj_ ? groups() : 0) + segment) * passes_ + pass;
  }

  // The last counters: behind the rule of all columns of a head.
  uint64_t rules_done(uint64_t h, uint64_t sequence) const {
    return heads_done(kSegments, 0) + h * c_.batch + sequence;
  }
  uint64_t parts() const { return c_.head_v_dim / kHeadColumns; }

  uint64_t first_pass(uint64_t sequence) const { return sequence * c_.tokens / kPassRows; }
  uint64_t last_pass(uint64_t sequence) const {
    return ((sequence + 1) * c_.tokens - 1) / kPassRows;
  }
  // Whether an output tile's segment of K reads columns of the head.
  bool in_segment(uint64_t h, uint64_t segment) const {
    const uint64_t steps = c_.value_dim() / 32, each = c_.head_v_dim / 32;
    return h * each < segment_begin(steps, segment + 1) &&
           (h + 1) * each > segment_begin(steps, segment);
  }

  TaskRecord& record(TaskStage stage, uint64_t tile, uint64_t part) {
    program_.records.push_back({.stage = stage,
                                .tile = u32(tile),
                                .part = u32(part),
                                .first_wait = 0,
                                .waits = 0,
                                .first_signal = 0,
                                .signals = 0,
                                .reserved0 = 0});
    return program_.records.back();
  }
  uint32_t edge(uint64_t counter, uint64_t count) {
    program_.edges.push_back({u32(counter), u32(count)});
    return u32(program_.edges.size() - 1);
  }
  uint32_t edges_since(uint32_t first) const { return u32(program_.edges.size()) - first; }

  void inputs() {
    const uint64_t keys = c_.key_dim(), values = c_.value_dim(), k = c_.head_k_dim,
                   v = c_.head_v_dim;
    columns(gates_group(), 2 * (keys + values), padded_rows(2 * c_.v_heads));
    for (uint64_t hk = 0; hk < c_.k_heads; ++hk) {
      columns(hk, hk * k, k);
      columns(hk, keys + hk * k, k);
      for (uint64_t h = 0; h < c_.v_heads; ++h) {
        if (key_head(h) != hk) continue;
        columns(value_group(h), 2 * keys + h * v, v);
        columns(value_group(h), 2 * keys + values + h * v, v);
        due_.push_back({kTaskHead, h, program_.records.size() + program_.workers});
      }
    }
  }

  // Input tiles of some columns of a group.
  void columns(uint64_t group, uint64_t first, uint64_t count) {
    for (uint64_t tile = first / kTile; tile < (first + count) / kTile; tile += nt_) {
      for (uint64_t pass = 0; pass < passes_; ++pass) {
        TaskRecord& r = record(kTaskInProj, tile, pass);
        r.first_signal = edge(made(group, pass), 1);
        r.signals = 1;
        while (next_due_ < due_.size() && due_[next_due_].behind <= program_.records.size()) {
          next_due();
        }
      }
    }
  }

  // The tasks that are due next; the gated norm of a head is due `workers` records behind its rule.
  void next_due() {
    const Due due = due_[next_due_++];
    if (due.stage == kTaskGatedNorm) return gated_norm(due.head);
    head(due.head);
    --heads_left_;
    due_.push_back({kTaskGatedNorm, due.head, program_.records.size() + program_.workers});
  }

  // The parts of a head, for each sequence.
  void head(uint64_t h) {
    for (uint64_t b = 0; b < c_.batch; ++b) {
      const uint32_t waits = u32(program_.edges.size());
      for (uint64_t pass = first_pass(b); in_proj_ && pass <= last_pass(b); ++pass) {
        for (uint64_t group : {key_head(h), value_group(h), gates_group()}) {
          edge(made(group, pass), group_tasks(group));
        }
      }
      const uint32_t count = edges_since(waits), signal = edge(rules_done(h, b), 1);
      for (uint64_t part = 0; part < parts(); ++part) {
        TaskRecord& r = record(kTaskHead, h * parts() + part, b);
        r.first_wait = waits;
        r.waits = count;
        r.first_signal = signal;
        r.signals = 1;
      }
    }
  }

  void gated_norm(uint64_t h) {
    for (uint64_t b = 0; b < c_.batch; ++b) {
      TaskRecord& r = record(kTaskGatedNorm, h, b);
      r.first_wait = edge(rules_done(h, b), parts());
      r.waits = 1;
      r.first_signal = u32(program_.edges.size());
      for (uint64_t pass = first_pass(b); pass <= last_pass(b); ++pass) {
        for (uint64_t s = 0; s < kSegments; ++s) {
          if (in_segment(h, s)) edge(heads_done(s, pass), 1);
        }
      }
      r.signals = edges_since(r.first_signal);
    }
  }

  void conv_state() {
    const uint64_t keys = c_.key_dim();
    for (uint64_t first = 0; first < c_.conv_dim(); first += kTaskChannels) {
      const uint64_t last = std::min(first + kTaskChannels, c_.conv_dim()) - 1;
      for (uint64_t b = 0; b < c_.batch; ++b) {
        TaskRecord& r = record(kTaskConvState, first / kTaskChannels, b);
        r.first_wait = u32(program_.edges.size());
        const auto wait = [&](uint64_t group) {
          for (uint64_t pass = first_pass(b); in_proj_ && pass <= last_pass(b); ++pass) {
            edge(made(group, pass), group_tasks(group));
          }
        };
        for (uint64_t hk = 0; hk < c_.k_heads; ++hk) {
          const uint64_t q = hk * c_.head_k_dim, k = keys + q, n = c_.head_k_dim;
          if ((q <= last && q + n > first) || (k <= last && k + n > first)) wait(hk);
        }
        for (uint64_t h = 0; h < c_.v_heads; ++h) {
          const uint64_t v = 2 * keys + h * c_.head_v_dim;
          if (v <= last && v + c_.head_v_dim > first) wait(value_group(h));
        }
        r.waits = edges_since(r.first_wait);
      }
    }
  }

  void outputs() {
    const uint32_t waits = u32(program_.edges.size());
    for (uint64_t pass = 0; pass < passes_; ++pass) {
      for (uint64_t s = 0; s < kSegments; ++s) edge(heads_done(s, pass), heads_of(s, pass));
    }
    for (uint64_t tile = 0; tile < padded_rows(c_.hidden) / kTile; tile += nt_) {
      for (uint64_t pass = 0; pass < passes_; ++pass) {
        TaskRecord& r = record(kTaskOutProj, tile, pass);
        r.first_wait = u32(waits + pass * kSegments);
        r.waits = kSegments;
      }
    }
  }

  // Gated norms that an output tile's segment needs.
  uint64_t heads_of(uint64_t segment, uint64_t pass) const {
    uint64_t heads = 0, sequences = 0;
    for (uint64_t h = 0; h < c_.v_heads; ++h) heads += in_segment(h, segment) ? 1 : 0;
    for (uint64_t b = 0; b < c_.batch; ++b) {
      sequences += first_pass(b) <= pass && pass <= last_pass(b) ? 1 : 0;
    }
    return heads * sequences;
  }

  struct Due {
    TaskStage stage;
    uint64_t head, behind;  // records that come before its own
  };

  const LayerCall& c_;
  uint64_t nt_;
  bool in_proj_;
  uint64_t passes_;
  std::vector<Due> due_;  // what it needs is all listed
  size_t next_due_ = 0;
  uint64_t heads_left_ = c_.v_heads;
  TaskProgram program_;
};

}  // namespace

TaskProgram task_program(const LayerCall& call, uint32_t nt, uint32_t workers, bool in_proj) {
  return Tasks(call, nt, workers, in_proj).run();
}

}  // namespace tmf::plan
