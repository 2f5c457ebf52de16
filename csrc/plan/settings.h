// "head;key=value;..": how a device or a geometry is changed by hand.
#pragma once

#include <charconv>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "call.h"

namespace tmf::plan {

class Settings {
 public:
  explicit Settings(std::string_view text) {
    size_t end = text.find(';');
    head_ = std::string(text.substr(0, end));
    while (end != std::string_view::npos) {
      text.remove_prefix(end + 1);
      end = text.find(';');
      const std::string_view part = text.substr(0, end);
      const size_t equals = part.find('=');
      if (equals == std::string_view::npos) {
        throw Refusal("setting", "'" + std::string(part) + "'", "key=value");
      }
      pairs_.emplace_back(part.substr(0, equals), part.substr(equals + 1));
    }
  }

  const std::string& head() const { return head_; }
  const std::vector<std::pair<std::string, std::string>>& pairs() const { return pairs_; }

  static uint64_t number(const std::string& name, const std::string& text, uint64_t low,
                         uint64_t high) {
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
      throw Refusal(name, "'" + text + "'",
                    "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
    }
    return value;
  }

 private:
  std::string head_;
  std::vector<std::pair<std::string, std::string>> pairs_;
};

}  // namespace tmf::plan
