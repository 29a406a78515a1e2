// The vectorized update of one run of elements, chosen at run time for this processor.
#pragma once

#include "cpu_adam/adam.hpp"

namespace strata::cpu_adam {

/// Updates the tile on the calling thread, in its present floating-point environment. Arrays may have any alignment (64 bytes is fastest).
void update_vectorized(const AdamTile& tile);

/// The name of the instruction set that update_vectorized uses.
const char* vector_instruction_set();

}  // namespace strata::cpu_adam
