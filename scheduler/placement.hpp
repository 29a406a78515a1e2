// Placement: which tier holds each kind of state, what becomes of activations, and when the update runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config.hpp"

namespace strata::scheduler {

/// Of one unit.
struct UnitPlacement {
  Tier parameters = Tier::device;
  Tier gradients = Tier::device;
  Tier optimizer = Tier::device;  // master, momentum and variance
  bool recompute = false;         // blocks: keep only the input of the forward pass
};

/// Of the whole model, with the schedule that goes with it. What it chooses never changes a number.
struct Placement {
  std::vector<UnitPlacement> units;  // as ModelLayout::units
  AccumulationOrder accumulation = AccumulationOrder::vertical;
  bool lazy_update = true;           // update a unit just before its next forward, instead of after the backward pass
  int64_t prefetch = 1;              // blocks fetched ahead of the one that computes
  uint32_t staging_tiles = 4;        // tiles in flight between the store and the update

  /// Whether every bit of training state is in the store, so that a commit there is a checkpoint: the optimizer's tiles are, and they
  /// carry the parameters, wherever else those live.
  bool all_state_in_store() const;
};

std::string_view to_string(Tier tier);

}  // namespace strata::scheduler
