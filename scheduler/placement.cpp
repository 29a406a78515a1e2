#include "scheduler/placement.hpp"

#include <algorithm>

namespace strata::scheduler {

std::string_view to_string(Tier tier) {
  return tier == Tier::device ? "device" : tier == Tier::host ? "host" : "nvme";
}

bool Placement::all_state_in_store() const {
  return std::all_of(units.begin(), units.end(),
                     [](const UnitPlacement& unit) { return unit.optimizer == Tier::nvme; });
}

}  // namespace strata::scheduler
