#include "devices.h"

#include <algorithm>
#include <cctype>

#include "call.h"
#include "settings.h"

namespace tmf::plan {
namespace {

// Sources. Bandwidth: nominal DRAM figures as vendors and public tables give them; M1, M2 and base
// M3 are common knowledge (unverified), M5 Max as announced. Cores: the largest configuration of
// the chip unless the name says otherwise; M5 Pro and M5 Max are unverified. Clock: 1.278 GHz (M1)
// and 1.296 GHz (M1 Max) from the metal-benchmarks project, 1.578 GHz (M5) from a published
// roofline analysis; the others are unverified and only enter estimates. MSL: what macOS 15 gives
// every Apple silicon chip; the system decides, not the chip. Threadgroup memory: 32 KB a
// threadgroup on all of them. H200: nominal bandwidth, 132 multiprocessors.
constexpr uint32_t kMemory = 32 * 1024;

DeviceSpec apple(const char* name, uint32_t cores, double bandwidth, double clock) {
  return {name, cores, bandwidth, clock, 320, kMemory, "apple"};
}

std::string folded(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c != ' ' && c != '-' && c != '_') out += static_cast<char>(std::tolower(c));
  }
  return out.rfind("apple", 0) == 0 && out.size() > 5 ? out.substr(5) : out;
}

std::string names() {
  std::string out;
  for (const DeviceSpec& d : devices()) out += (out.empty() ? "" : ", ") + d.name;
  return out;
}

}  // namespace

const std::vector<DeviceSpec>& devices() {
  static const std::vector<DeviceSpec> table{
      apple("M1", 8, 68, 1.278),
      apple("M1 Pro", 16, 200, 1.296),
      apple("M1 Max", 32, 400, 1.296),
      apple("M1 Ultra", 64, 800, 1.296),
      apple("M2", 10, 100, 1.398),
      apple("M2 Pro", 19, 200, 1.398),
      apple("M2 Max", 38, 400, 1.398),
      apple("M2 Ultra", 76, 800, 1.398),
      apple("M3", 10, 100, 1.4),
      apple("M3 Pro", 18, 150, 1.4),
      apple("M3 Max 30", 30, 300, 1.4),
      apple("M3 Max", 40, 400, 1.4),
      apple("M3 Ultra", 80, 819, 1.4),
      apple("M4", 10, 120, 1.5),
      apple("M4 Pro", 20, 273, 1.5),
      apple("M4 Max 32", 32, 410, 1.5),
      apple("M4 Max", 40, 546, 1.5),
      apple("M5", 10, 153, 1.578),
      apple("M5 Pro", 20, 307, 1.578),
      apple("M5 Max 32", 32, 460, 1.578),
      apple("M5 Max", 40, 614, 1.578),
      // metal_host: planned as the smallest chip, so that what it runs is what a Mac would run
      {"host", 8, 68, 1.278, 320, kMemory, "apple"},
      {"H200", 132, 4800, 1.98, 320, kMemory, "nvidia"},
  };
  return table;
}

const DeviceSpec* find_device(std::string_view name) {
  for (const DeviceSpec& d : devices()) {
    if (folded(d.name) == folded(name)) return &d;
  }
  return nullptr;
}

DeviceSpec parse_device(std::string_view text) {
  const Settings settings(text);
  const DeviceSpec* found = find_device(settings.head());
  if (found == nullptr) throw Refusal("device", "'" + settings.head() + "'", names());
  DeviceSpec spec = *found;
  for (const auto& [key, value] : settings.pairs()) {
    if (key == "cores") {
      spec.cores = static_cast<uint32_t>(Settings::number("device: cores", value, 1, 4096));
    } else if (key == "bandwidth") {
      spec.bandwidth_gb_s =
          static_cast<double>(Settings::number("device: bandwidth", value, 1, 100000));
    } else if (key == "row_threshold") {
      spec.row_threshold =
          static_cast<uint32_t>(Settings::number("device: row_threshold", value, 0, 1 << 19));
    } else if (key == "dispatch_limit_us") {
      spec.dispatch_limit_us =
          static_cast<double>(Settings::number("device: dispatch_limit_us", value, 1, 1000000000));
    } else if (key == "msl") {
      spec.msl = static_cast<uint32_t>(Settings::number("device: msl", value, 100, 999));
    } else if (key == "threadgroup_memory") {
      spec.threadgroup_memory =
          static_cast<uint32_t>(Settings::number("device: threadgroup_memory", value, 0, 1 << 24));
    } else if (key == "chunk_rows") {
      spec.chunk_rows =
          static_cast<uint32_t>(Settings::number("device: chunk_rows", value, 1, 1 << 30));
    } else if (key == "working_set_mb") {
      spec.working_set_bytes =
          Settings::number("device: working_set_mb", value, 0, 1 << 30) * 1'000'000;
    } else {
      throw Refusal("device", "'" + key + "'",
                    "cores, bandwidth, msl, threadgroup_memory, row_threshold, dispatch_limit_us, "
                    "chunk_rows, working_set_mb");
    }
  }
  return spec;
}

const DeviceSpec& host_device() {
  static const DeviceSpec spec = *find_device("host");
  return spec;
}

DeviceSpec unknown_apple(std::string_view name) {
  DeviceSpec spec = devices().front();
  spec.name = std::string(name);
  return spec;
}

}  // namespace tmf::plan
