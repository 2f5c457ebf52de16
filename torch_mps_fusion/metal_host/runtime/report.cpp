// Who waits where for what.
#include "report.h"

#include <map>

namespace mh {
namespace {
std::string describe(const Group& g) {
  std::map<std::pair<std::string, std::string>, std::vector<u32>> by_place;
  for (const Fiber& f : g.fibers) {
    if (f.index >= g.threads || f.state == DONE) continue;
    std::string where, what;
    if (f.state == AT_BARRIER) {
      what = "wait at threadgroup_barrier", where = place(f.site);
    } else if (f.state == AT_SIMD) {
      what = "wait at a simdgroup operation", where = place(f.site);
    } else if (f.poll.pc) {
      what = "poll " + name_of(f.poll.place) + words(" (= %llu)", (unsigned long long)f.poll.value);
      where = place(f.poll.pc);
    } else {
      what = "could run";
    }
    by_place[{what, where}].push_back(f.index);
  }
  std::string text = words("threadgroup %u%s:", g.number, g.lost ? " (lost)" : "");
  int shown = 0;
  for (auto& [key, threads] : by_place) {
    if (++shown > 4) {
      text += " ...";
      break;
    }
    text += words("%s %zu thread%s (%u%s) %s", shown > 1 ? "," : "", threads.size(),
                  threads.size() > 1 ? "s" : "", threads[0], threads.size() > 1 ? ", ..." : "",
                  key.first.c_str());
    if (!key.second.empty()) text += " at " + key.second;
  }
  if (by_place.empty()) text += " finished";
  return text;
}
}  // namespace

std::string waiting() {
  std::string text;
  int shown = 0;
  for (auto& g : S->all) {
    if (!g->live) continue;
    if (++shown > 6) {
      text += "; and more";
      break;
    }
    text += (text.empty() ? "" : "; ") + describe(*g);
  }
  u32 unstarted = S->shared_next ? 0 : S->groups - S->next;
  if (unstarted)
    text += words("; %u of %u threadgroups not started (%u in flight at once)", unstarted,
                  S->groups, S->o.residency);
  return text;
}
}  // namespace mh
