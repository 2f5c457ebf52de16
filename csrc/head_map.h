// Which key head a value head reads.
#pragma once

namespace tmf {

// With r = Hv / Hk: block is h / r (safetensors), tiled is h % Hk (GGUF).
enum class HeadMap { block, tiled };

}  // namespace tmf
