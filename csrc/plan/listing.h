// A program as lines of words, for explain and for tests, and back.
//   buffer NAME STORAGE BYTES ROLE GIVEN
//   dispatch STAGE FAMILY KERNEL GX GY GZ THREADS MEMORY BARRIER PRODUCT ESTIMATE_US
//   constant ID VALUE                                      (of the dispatch above, as the next two)
//   view INDEX BUFFER ACCESS OFFSET EXTENT READ WRITTEN    BUFFER is a line number of `buffer`
//   bytes INDEX HEX
//   tasks COUNTERS WORKERS                    of a persistent dispatch; the lines below follow it
//   task STAGE TILE PART FIRST_WAIT WAITS FIRST_SIGNAL SIGNALS           in ticket order, tasks.h
//   edge COUNTER COUNT
//   touch TASK BUFFER read|write WAIT OFFSET ROWS PITCH BYTES
//   time US                                                      of each task, by estimate
#pragma once

#include <string>
#include <string_view>

#include "program.h"

namespace tmf::plan {

std::string to_listing(const Program& program);

// Throws Refusal that names the line.
Program from_listing(std::string_view text);

std::string to_hex(const std::byte* data, size_t size);

}  // namespace tmf::plan
