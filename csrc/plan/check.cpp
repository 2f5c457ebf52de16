#include "check.h"

#include <algorithm>
#include <cstring>

#include "constants.h"
#include "shaders/include/abi.h"
#include "verify.h"

namespace tmf::plan {
namespace {

struct Touch {
  size_t dispatch;
  const Argument* argument;
  bool write;
};

bool overlap(const Argument& a, const Argument& b) {
  return a.offset < b.offset + b.extent && b.offset < a.offset + a.extent;
}

// Arguments of one kernel that may be one memory: the old and the new of a state, O and G. Each
// value is read by the thread that writes it, before it does.
bool may_alias(const std::string& family, uint32_t read, uint32_t write) {
  return (family == "rule" && read == 5 && write == 6) ||
         (family == "core" && read == 6 && write == 7) ||
         (family == "projection" && read == 7 && write == 8) ||
         (family == "gated_norm" && read == 0 && write == 4);
}

// What a kernel reads before it has called inputs_ready(): see shaders/include/overlap.h.
bool asked_ahead(const Dispatch& d, uint32_t index) {
  const std::string& family = d.kernel.family;
  if (family == "projection") return index == 0 || index == 3;
  if (family == "conv") return index == 1 || index == 2;
  if (family != "core" && family != "rule") return false;
  if (family == "core" && index >= 1 && index <= 5) return true;
  GdnArgs g{};
  const std::vector<std::byte>& bytes = d.arguments.back().bytes;
  if (bytes.size() == sizeof g) std::memcpy(&g, bytes.data(), sizeof g);
  return index == (family == "core" ? 6 : 5) && g.first == 0;
}

class Dependences {
 public:
  explicit Dependences(const Program& program) : program_(program) {
    for (const Buffer& b : program.buffers) {
      holds_.push_back(b.given);
      storages_ = std::max(storages_, b.storage + 1);
    }
    since_barrier_.resize(storages_);
    written_.resize(storages_);
    last_written_as_.assign(storages_, -1);
  }

  std::vector<std::string> run() {
    for (size_t i = 0; i < program_.dispatches.size(); ++i) dispatch(i);
    check_end();
    return std::move(errors_);
  }

 private:
  const Buffer& buffer(const Argument& a) const { return program_.buffers.at(a.buffer); }

  std::string named(size_t i) const {
    return "dispatch " + std::to_string(i) + " (" + program_.dispatches[i].stage + ")";
  }

  void dispatch(size_t i) {
    const Dispatch& d = program_.dispatches[i];
    if (d.barrier_before) {
      for (auto& touches : since_barrier_) touches.clear();
    }
    for (const Argument& a : d.arguments) {
      if (a.buffer < 0 || a.access == Access::none) continue;
      if (reads(a.access)) check_read(i, a);
      check_ordered(i, a);
      if (program_.overlap && reads(a.access) && asked_ahead(d, a.index)) check_ahead(i, a);
    }
    check_inside(i);
    for (const Argument& a : d.arguments) {
      if (a.buffer < 0 || a.access == Access::none) continue;
      since_barrier_[buffer(a).storage].push_back({i, &a, writes(a.access)});
      if (!writes(a.access)) continue;
      written_[buffer(a).storage].push_back({i, &a, true});
      holds_[a.buffer] = true;
      last_written_as_[buffer(a).storage] = a.buffer;
    }
  }

  void check_read(size_t i, const Argument& a) {
    const Buffer& b = buffer(a);
    if (!holds_[a.buffer]) {
      errors_.push_back(named(i) + " reads " + b.name + ", which nothing wrote");
    }
    const int32_t writer = last_written_as_[b.storage];
    if (writer >= 0 && writer != a.buffer) {
      errors_.push_back(named(i) + " reads " + b.name + ", whose memory was overwritten as " +
                        program_.buffers[writer].name);
    }
  }

  void check_ordered(size_t i, const Argument& a) {
    for (const Touch& before : since_barrier_[buffer(a).storage]) {
      if (!before.write && !writes(a.access)) continue;
      if (!overlap(a, *before.argument)) continue;
      errors_.push_back(named(i) + (writes(a.access) ? " writes " : " reads ") + buffer(a).name +
                        ", which " + named(before.dispatch) + (before.write ? " wrote" : " reads") +
                        ", without a barrier between");
    }
  }

  void check_ahead(size_t i, const Argument& a) {
    for (const Touch& before : written_[buffer(a).storage]) {
      if (!overlap(a, *before.argument)) continue;
      errors_.push_back(named(i) + " asks ahead for " + buffer(a).name + ", which " +
                        named(before.dispatch) + " wrote");
    }
  }

  // What the caller gave is still there, unless it is a state that was to be replaced, and so are
  // the results.
  void check_end() {
    for (size_t i = 0; i < program_.buffers.size(); ++i) {
      const Buffer& b = program_.buffers[i];
      const int32_t writer = last_written_as_[b.storage];
      if (b.role == Role::scratch || writer < 0 || static_cast<size_t>(writer) == i) continue;
      const std::string& last = program_.buffers[writer].name;
      if ((b.name == "conv_in" && last == "conv_out") ||
          (b.name == "state_in" && last == "state_out")) {
        continue;
      }
      errors_.push_back(b.name + " is overwritten as " + last);
    }
  }

  void check_inside(size_t i) {
    const Dispatch& d = program_.dispatches[i];
    if (d.tasks) return;  // its tasks share memory as verify.h has it
    for (const Argument& w : d.arguments) {
      if (w.buffer < 0 || !writes(w.access)) continue;
      for (const Argument& other : d.arguments) {
        if (&other == &w || other.buffer < 0 || other.access == Access::none) continue;
        if (buffer(other).storage != buffer(w).storage || !overlap(w, other)) continue;
        if (!writes(other.access) && may_alias(d.kernel.family, other.index, w.index)) continue;
        errors_.push_back(named(i) + " writes " + buffer(w).name + ", which shares memory with " +
                          buffer(other).name);
      }
    }
  }

  const Program& program_;
  uint32_t storages_ = 0;
  std::vector<bool> holds_;  // by buffer
  std::vector<std::vector<Touch>> since_barrier_, written_;
  std::vector<int32_t> last_written_as_;
  std::vector<std::string> errors_;
};

}  // namespace

std::vector<std::string> check_dependences(const Program& program) {
  return Dependences(program).run();
}

std::vector<std::string> check(const Program& program) {
  std::vector<std::string> errors = check_dependences(program);
  for (std::string& e : check_bounds(program)) errors.push_back(std::move(e));
  for (std::string& e : check_blocks(program)) errors.push_back(std::move(e));
  for (std::string& e : verify_tasks(program)) errors.push_back(std::move(e));
  return errors;
}

}  // namespace tmf::plan
