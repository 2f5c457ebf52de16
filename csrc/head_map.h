// Which key head serves a value head: the one definition.
#pragma once

#include <cstdint>

namespace tmf {

enum class HeadMap { block, tiled };

// block: h / (Hv / Hk), as in safetensors checkpoints; tiled: h % Hk, as in GGUF files.
inline int64_t key_head(HeadMap map, int64_t value_head, int64_t num_k_heads, int64_t num_v_heads) {
  return map == HeadMap::block ? value_head / (num_v_heads / num_k_heads)
                               : value_head % num_k_heads;
}

}  // namespace tmf
