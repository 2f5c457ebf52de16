// Launch geometry: free for each device, never seen in the bits. Tables as data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "call.h"
#include "devices.h"

namespace tmf::plan {

struct Geometry {
  std::string tile;          // of the projections, see shaders/README.md
  std::string deep{};        // of those whose segments of K have 8 or 16 steps; empty: tile
  uint32_t groups_per_core;  // threadgroups of a normalising projection; 0: one for each NT tiles
  std::string rule, core;
  bool own_norm = false;          // the row norm is a dispatch of its own
  uint32_t groups = 0;            // of all projections, if not 0, whatever the core count
  uint64_t block = 0;             // tokens of a dispatch between the projections; 0: by estimate
  std::string worker = "nt1u2p";  // tile of the projections in a persistent dispatch
  uint32_t workers = 0;           // threadgroups of one; 0: as many as are resident for certain
  uint32_t spins = 50000;         // polls after which one of its waits gives up
  bool times = false;             // the instrumented build of one, see shaders/include/times.h
  bool overlap = false;           // dispatches of a call may overlap, see shaders/include/overlap.h
};

Geometry geometry_for(const DeviceSpec& device, Io io);

// Changes by hand: ";tile=nt1u4;groups=3;groups_per_core=0;rule=r2s4;core=r4;norm=own;block=3;
// worker=nt1u4;workers=6;spins=1000;times=1;overlap=1".
Geometry change(Geometry geometry, std::string_view text);

// The number behind `letter` in "nt1u2p", "r2s4", "r2".
uint32_t tile_number(const std::string& name, char letter);

// The tile of a projection with K columns.
const std::string& tile_for(const Geometry& geometry, uint64_t k);

// Threadgroups that make `tiles` tiles, `nt` at a time: as many as wanted at most, all with the
// same number of rounds.
uint32_t projection_groups(const Geometry& geometry, const DeviceSpec& device, uint64_t tiles,
                           uint32_t nt, bool norm);

// Workers of a persistent dispatch, if it has so many tasks.
uint32_t worker_count(const Geometry& geometry, const DeviceSpec& device);

}  // namespace tmf::plan
