// The order of blocks: which sequences and tokens each dispatch takes, from its argument structs.
#include <cstring>
#include <map>
#include <optional>

#include "call.h"
#include "check.h"
#include "shaders/include/abi.h"

namespace tmf::plan {
namespace {

// Stages whose block must be behind the same block of the stage before.
constexpr std::array<const char*, 4> kChain{"conv", "qk_gates", "rule", "gated_norm"};

bool between_projections(const std::string& family) {
  if (family == "core") return true;
  for (const char* stage : kChain) {
    if (family == stage) return true;
  }
  return false;
}

std::optional<GdnArgs> block_of(const Dispatch& d) {
  if (d.arguments.empty() || d.arguments.back().bytes.size() != sizeof(GdnArgs)) {
    return std::nullopt;
  }
  GdnArgs g;
  std::memcpy(&g, d.arguments.back().bytes.data(), sizeof g);
  return g;
}

class Blocks {
 public:
  explicit Blocks(const Program& program) : program_(program) {}

  std::vector<std::string> run() {
    for (const Dispatch& d : program_.dispatches) {
      const std::string& family = d.kernel.family;
      if (!between_projections(family)) {
        const std::optional<GdnArgs> g = family == "projection" ? block_of(d) : std::nullopt;
        if (!taken_.empty() && (d.product || g)) behind(d, g);
        continue;
      }
      if (closed_) errors_.push_back(d.stage + " comes after the output projection");
      if (const std::optional<GdnArgs> g = block_of(d)) block(d, *g);
    }
    return std::move(errors_);
  }

 private:
  // Tokens taken so far, by stage and by where its first buffer is bound: at which sequence.
  using Taken = std::map<std::string, std::map<uint64_t, uint64_t>>;

  void block(const Dispatch& d, const GdnArgs& g) {
    const std::string& family = d.kernel.family;
    auto& stage = taken_[family];
    // The first buffer of every stage has rows of one width: a block is known by its place in it.
    const uint64_t row = d.arguments.front().extent / (uint64_t{g.batch} * g.tokens);
    const uint64_t sequence = row == 0 ? 0 : d.arguments.front().offset / (row * g.tokens);
    uint64_t& next = stage[sequence];
    const uint64_t end = uint64_t{g.first} + g.count;
    tokens_ = g.tokens;
    batch_[family] += next == 0 ? g.batch : 0;
    if (g.first != next || end > g.tokens) {
      errors_.push_back(d.stage + " takes tokens from " + std::to_string(g.first) + " on, after " +
                        std::to_string(next));
    }
    next = end;
    for (size_t i = 1; i < kChain.size(); ++i) {
      if (family == kChain[i] && taken_[kChain[i - 1]][sequence] < end) {
        errors_.push_back(d.stage + " is ahead of " + kChain[i - 1]);
      }
    }
  }

  // What follows the stages needs all of them.
  void behind(const Dispatch& d, const std::optional<GdnArgs>& g) {
    closed_ = true;
    for (const auto& [family, sequences] : taken_) {
      for (const auto& [sequence, next] : sequences) {
        if (next == tokens_) continue;
        errors_.push_back(d.stage + " comes before " + family + " took all tokens");
      }
      if (g && batch_[family] != g->batch) {
        errors_.push_back(d.stage + " comes before " + family + " took all sequences");
      }
    }
    if (taken_.count("core") == 0 && taken_.size() != kChain.size()) {
      errors_.push_back(d.stage + " comes before all stages");
    }
  }

  const Program& program_;
  Taken taken_;
  std::map<std::string, uint64_t> batch_;
  uint64_t tokens_ = 0;
  bool closed_ = false;
  std::vector<std::string> errors_;
};

}  // namespace

std::vector<std::string> check_blocks(const Program& program) { return Blocks(program).run(); }

}  // namespace tmf::plan
