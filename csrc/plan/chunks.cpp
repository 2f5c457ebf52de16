#include "chunks.h"

#include <algorithm>

#include "call.h"

namespace tmf::plan {
namespace {

// The size of the fewest parts of at most `limit`, all but the last of one size, a multiple of
// `step` if the limit is.
uint64_t even_part(uint64_t total, uint64_t limit, uint64_t step) {
  const uint64_t parts = ceil_div(total, limit);
  return std::min(limit, ceil_div(ceil_div(total, parts), step) * step);
}

}  // namespace

std::vector<Chunk> chunks_of(uint64_t batch, uint64_t tokens, uint64_t limit) {
  if (batch * tokens <= limit) return {{0, batch, 0, tokens}};
  constexpr uint64_t kPass = 8;  // rows of a pass of the projections
  const uint64_t sequences =
      tokens >= limit ? 1 : even_part(batch, std::max<uint64_t>(limit / tokens, 1), 1);
  const uint64_t count = tokens > limit ? even_part(tokens, limit, kPass) : tokens;
  std::vector<Chunk> chunks;
  for (uint64_t b = 0; b < batch; b += sequences) {
    for (uint64_t t = 0; t < tokens; t += count) {
      chunks.push_back({b, std::min(sequences, batch - b), t, std::min(count, tokens - t)});
    }
  }
  return chunks;
}

}  // namespace tmf::plan
