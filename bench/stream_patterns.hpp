// The byte streams of the AdamW update with almost no arithmetic: the limit that memory sets to it.
#pragma once

#include "cpu_adam/adam.hpp"

namespace strata::bench {

/// Reads and writes the same arrays, in the same order and with the same prefetch distance, as an update of this tile would
/// (28 bytes per parameter for fp32, 26 for split masters with bf16 gradients, 28 for fp32 masters with bf16 parameters and
/// gradients); the new values are cheap mixtures of the old. On the calling thread.
void touch_streams(const AdamTile& tile);

}  // namespace strata::bench
