// Chunked prefill: a long call as several, one after the other. What lies between the stages grows
// with the rows of a call; so its memory is bounded, and so is the work of a matrix product.
#pragma once

#include <cstdint>
#include <vector>

#include "program.h"

namespace tmf::plan {

// Tokens [first, first + tokens) of the sequences [batch_first, batch_first + batch).
struct Chunk {
  uint64_t batch_first, batch, first, tokens;
};

// Chunks of at most `limit` rows and of nearly equal size: whole sequences, or a part of one, so
// that a chunk is contiguous in (B, T, ..). The tokens of a sequence come in order.
std::vector<Chunk> chunks_of(uint64_t batch, uint64_t tokens, uint64_t limit);

struct ChunkProgram {
  Chunk chunk;
  Program program;
};

}  // namespace tmf::plan
