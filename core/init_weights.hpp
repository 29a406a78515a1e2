// Random initial weights as transformers draws them: same distributions, not the same draws.
#pragma once

#include <cstdint>

#include "core/layout.hpp"
#include "core/model.hpp"

namespace strata {

/// Fills out[0, range.count) with that part of the unit's initial flat buffer, gaps as zeros: matrices and embeddings
/// normal with standard deviation initializer_range (GPT-2's two projections into the residual stream divided by sqrt(2
/// layers)), norm weights 1, biases 0. An element depends on the seed, its tensor's name and its index alone, so any
/// split gives the same values.
void init_weights(const ModelDescription& model, const UnitLayout& unit, Range range, uint64_t seed, float* out);

}  // namespace strata
