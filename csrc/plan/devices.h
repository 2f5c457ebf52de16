// What the planner knows of a device. Always an argument: nothing in plan/ asks a device.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tmf::plan {

struct DeviceSpec {
  std::string name;
  uint32_t cores;               // GPU cores
  double bandwidth_gb_s;        // nominal
  double clock_ghz;             // for estimates only
  uint32_t msl;                 // language level: 310 is Metal 3.1
  uint32_t threadgroup_memory;  // bytes a threadgroup may have
  std::string lanes;            // lane map of packed weights
  uint32_t row_threshold = 32;  // more rows than this: the projections are aten products
  double dispatch_limit_us = 1000;
  uint32_t chunk_rows = 2048;      // rows that run at once; longer calls run in chunks
  uint64_t working_set_bytes = 0;  // what the device recommends; 0: unknown
};

const std::vector<DeviceSpec>& devices();

// By name, case and spaces aside; nullptr if there is none.
const DeviceSpec* find_device(std::string_view name);

// "M1 Max", or with changes: "M1 Max;cores=24;row_threshold=8". Throws Refusal.
DeviceSpec parse_device(std::string_view text);

// What stands for CPU tensors, whose kernels run in metal_host.
const DeviceSpec& host_device();

// For an Apple GPU that the table does not know: the smallest chip's figures.
DeviceSpec unknown_apple(std::string_view name);

}  // namespace tmf::plan
