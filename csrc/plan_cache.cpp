#include "plan_cache.h"

#include <array>

namespace tmf {
namespace {

struct Entry {
  PlanKey key;
  std::shared_ptr<const Plan> plan;
};

struct Cache {
  std::array<Entry, kPlans> entries;
  size_t oldest = 0;
};

}  // namespace

std::shared_ptr<const Plan> cached_plan(const PlanKey& key, const std::function<Plan()>& make) {
  static thread_local Cache cache;
  for (const Entry& entry : cache.entries) {
    if (entry.plan && entry.key == key) return entry.plan;
  }
  Entry& entry = cache.entries[cache.oldest];
  entry = {key, std::make_shared<const Plan>(make())};
  cache.oldest = (cache.oldest + 1) % kPlans;
  return entry.plan;
}

}  // namespace tmf
