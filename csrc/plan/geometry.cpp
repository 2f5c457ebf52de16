#include "geometry.h"

#include <algorithm>
#include <array>

#include "settings.h"

namespace tmf::plan {
namespace {

constexpr std::array<std::string_view, 5> kTiles{"nt1u2p", "nt1u4", "nt1u8", "nt1u4p", "nt2u2p"};
constexpr std::array<std::string_view, 2> kRules{"r1s4", "r2s4"};
constexpr std::array<std::string_view, 2> kCores{"r2", "r4"};
constexpr std::array<std::string_view, 2> kWorkers{"nt1u2p", "nt1u4"};
constexpr std::array<std::string_view, 2> kNorms{"inside", "own"};

struct Row {
  std::string_view device;  // how its name begins; empty: any
  std::string_view io;      // empty: any
  Geometry geometry;
};

// From benchmarks/NOTES.md. `deep` costs registers that float, of twice the size, has not left.
Geometry h200(const char* deep) {
  return {.tile = "nt1u4",
          .deep = deep,
          .groups_per_core = 4,
          .rule = "r1s4",
          .core = "r2",
          .own_norm = true,
          .worker = "nt1u4",
          .workers = 264,
          .overlap = true};
}

// The first row that fits. None has been timed on an Apple GPU: this is where tuning goes.
const std::vector<Row>& table() {
  static const std::vector<Row> rows{
      {"H200", "f32", h200("")},
      {"H200", "", h200("nt1u8")},
      // Four threadgroups of eight SIMD groups are resident on a core at 1,024 threads.
      {"", "", {.tile = "nt1u2p", .groups_per_core = 4, .rule = "r1s4", .core = "r2"}},
  };
  return rows;
}

template <size_t N>
std::string one_of(const char* what, const std::string& value,
                   const std::array<std::string_view, N>& known) {
  if (std::find(known.begin(), known.end(), value) != known.end()) return value;
  std::string accepted;
  for (std::string_view k : known) accepted += (accepted.empty() ? "" : ", ") + std::string(k);
  throw Refusal(what, "'" + value + "'", accepted);
}

}  // namespace

Geometry geometry_for(const DeviceSpec& device, Io io) {
  for (const Row& row : table()) {
    const bool named = std::string_view(device.name).substr(0, row.device.size()) == row.device;
    if (named && (row.io.empty() || row.io == name_of(io))) return row.geometry;
  }
  throw std::logic_error("the geometry table has no row for any device");
}

Geometry change(Geometry g, std::string_view text) {
  const auto small = [](const std::string& key, const std::string& value) {
    return static_cast<uint32_t>(Settings::number("geometry: " + key, value, 0, 1 << 20));
  };
  const Settings settings(text);
  if (!settings.head().empty()) {
    throw Refusal("geometry", "'" + settings.head() + "'",
                  "changes that each begin with ';', as \";tile=nt1u4\"");
  }
  for (const auto& [key, value] : settings.pairs()) {
    if (key == "tile") {
      g.tile = one_of("geometry: tile", value, kTiles);
      g.deep.clear();
    } else if (key == "rule") {
      g.rule = one_of("geometry: rule", value, kRules);
    } else if (key == "core") {
      g.core = one_of("geometry: core", value, kCores);
    } else if (key == "norm") {
      g.own_norm = one_of("geometry: norm", value, kNorms) == "own";
    } else if (key == "groups") {
      g.groups = small(key, value);
    } else if (key == "groups_per_core") {
      g.groups_per_core = small(key, value);
    } else if (key == "block") {
      g.block = small(key, value);
    } else if (key == "workers") {
      g.workers = small(key, value);
    } else if (key == "worker") {
      g.worker = one_of("geometry: worker", value, kWorkers);
    } else if (key == "spins") {
      g.spins = small(key, value);
    } else if (key == "times") {
      g.times = Settings::number("geometry: times", value, 0, 1) == 1;
    } else if (key == "overlap") {
      g.overlap = Settings::number("geometry: overlap", value, 0, 1) == 1;
    } else {
      throw Refusal(
          "geometry", "'" + key + "'",
          "tile, groups, groups_per_core, rule, core, norm, block, worker, workers, spins, times, "
          "overlap");
    }
  }
  return g;
}

const std::string& tile_for(const Geometry& g, uint64_t k) {
  const uint64_t steps = k / 32 / 8;  // of a segment
  const bool whole = k % 256 == 0 && (steps == 8 || steps == 16);
  return whole && !g.deep.empty() ? g.deep : g.tile;
}

uint32_t tile_number(const std::string& name, char letter) {
  const size_t at = name.find(letter);
  return at == std::string::npos ? 0 : static_cast<uint32_t>(std::stoul(name.substr(at + 1)));
}

uint32_t worker_count(const Geometry& g, const DeviceSpec& device) {
  // SIMD groups that a core holds whatever their registers; a worker has eight.
  constexpr uint32_t kResident = 12, kWorkerSimds = 8;
  if (g.workers != 0) return g.workers;
  return std::max(1u, device.cores * kResident / kWorkerSimds);
}

uint32_t projection_groups(const Geometry& g, const DeviceSpec& device, uint64_t tiles, uint32_t nt,
                           bool norm) {
  const uint64_t units = ceil_div(tiles, nt);
  if (g.groups != 0) return static_cast<uint32_t>(std::min<uint64_t>(units, g.groups));
  const uint64_t wanted = uint64_t{g.groups_per_core} * device.cores;
  if (!norm || wanted == 0 || wanted >= units) return static_cast<uint32_t>(units);
  return static_cast<uint32_t>(ceil_div(units, ceil_div(units, wanted)));
}

}  // namespace tmf::plan
