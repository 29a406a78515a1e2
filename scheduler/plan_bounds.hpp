// Whether a run is of a size that can be planned at all, found before anything of it is compiled: sums of bytes stay far below 64 bits, and
// the compiled step stays in memory.
#pragma once

#include <cstdint>

#include "core/config.hpp"
#include "core/layout.hpp"
#include "core/model.hpp"
#include "scheduler/state_format.hpp"

namespace strata::scheduler {

/// The tile where schedule.tile is `auto`: 16 MiB of state, doubled until the model has at most 4096 tiles. Of the model and its formats
/// alone, so that every machine chooses the same.
uint64_t automatic_tile_bytes(const ModelLayout& layout, const StateFormat& format);

/// An estimate, not below the truth by much, of the operations of all programs of a step with tiles of `tile_bytes`.
uint64_t estimated_operations(const Config& config, const ModelLayout& layout, const StateFormat& format, uint64_t tile_bytes);

/// Throws invalid_configuration that names the key to change: micro-batches, tiles or operations that cannot be planned, and activations or
/// state of more bytes than any machine has.
void check_plan_bounds(const Config& config, const ModelDescription& model, const ModelLayout& layout);

}  // namespace strata::scheduler
