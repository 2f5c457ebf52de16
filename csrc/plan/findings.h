// What a checker finds: one line each, and of one kind only the first few.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tmf::plan {

class Findings {
 public:
  // `rule`: what was broken, with which the line begins; `what`: where.
  void add(const std::string& rule, const std::string& what) {
    if (++count_[rule] <= kShown) lines_.push_back(rule + ": " + what);
  }
  bool empty() const { return count_.empty(); }

  std::vector<std::string> take() {
    for (const auto& [rule, n] : count_) {
      if (n > kShown) lines_.push_back(rule + ": " + std::to_string(n - kShown) + " more");
    }
    count_.clear();
    return std::exchange(lines_, {});
  }

 private:
  static constexpr size_t kShown = 4;
  std::map<std::string, size_t> count_;
  std::vector<std::string> lines_;
};

}  // namespace tmf::plan
