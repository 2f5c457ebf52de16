// Vector clocks. A clock knows, for each threadgroup it has heard of, how far every thread of that
// threadgroup had come: one shared row a threadgroup, so that a barrier costs one row, and a
// launch whose threadgroups never meet keeps one row a clock.
#pragma once
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "abi.h"

namespace mh {
using Row = std::shared_ptr<const std::vector<u32>>;

struct Clock {
  std::vector<std::pair<u32, Row>> rows;  // by threadgroup, ascending

  const std::vector<u32>* find(u32 group) const {
    auto it = std::lower_bound(rows.begin(), rows.end(), group,
                               [](const auto& row, u32 g) { return row.first < g; });
    return it != rows.end() && it->first == group ? it->second.get() : nullptr;
  }
};
using ClockPtr = std::shared_ptr<const Clock>;

inline Row join_rows(const Row& a, const Row& b) {
  if (a == b || !b) return a;
  if (!a) return b;
  bool a_leads = true, b_leads = true;
  for (size_t i = 0; i < a->size(); ++i) {
    if ((*a)[i] < (*b)[i]) a_leads = false;
    if ((*b)[i] < (*a)[i]) b_leads = false;
  }
  if (a_leads) return a;
  if (b_leads) return b;
  auto joined = std::make_shared<std::vector<u32>>(*a);
  for (size_t i = 0; i < joined->size(); ++i) (*joined)[i] = std::max((*joined)[i], (*b)[i]);
  return joined;
}

inline void join(ClockPtr& into, const ClockPtr& other) {
  if (!other || into == other) return;
  if (!into) {
    into = other;
    return;
  }
  auto joined = std::make_shared<Clock>();
  auto a = into->rows.begin(), b = other->rows.begin();
  while (a != into->rows.end() || b != other->rows.end()) {
    if (b == other->rows.end() || (a != into->rows.end() && a->first < b->first)) {
      joined->rows.push_back(*a++);
    } else if (a == into->rows.end() || b->first < a->first) {
      joined->rows.push_back(*b++);
    } else {
      joined->rows.push_back({a->first, join_rows(a->second, b->second)});
      ++a, ++b;
    }
  }
  into = joined;
}

// The clock with the given threads of a threadgroup set to given times.
inline ClockPtr advanced(const ClockPtr& from, u32 group, u32 threads,
                         const std::vector<std::pair<u32, u32>>& times) {
  auto clock = from ? std::make_shared<Clock>(*from) : std::make_shared<Clock>();
  auto it = std::lower_bound(clock->rows.begin(), clock->rows.end(), group,
                             [](const auto& row, u32 g) { return row.first < g; });
  if (it == clock->rows.end() || it->first != group) it = clock->rows.insert(it, {group, nullptr});
  auto row = it->second ? std::make_shared<std::vector<u32>>(*it->second)
                        : std::make_shared<std::vector<u32>>(threads, 0u);
  for (auto [thread, time] : times) (*row)[thread] = time;
  it->second = row;
  return clock;
}
}  // namespace mh
