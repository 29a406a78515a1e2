// What changed since a run's last session: each change in a line that says whether it changes numbers, and what cannot be continued.
#pragma once

#include <string>
#include <vector>

#include "scheduler/session_record.hpp"
#include "scheduler/trainer_record.hpp"

namespace strata::scheduler {

/// The saved state that a session is about to continue.
struct ContinuedState {
  const TrainerRecord& record;
  bool in_store = false;  // its bytes have the formats that they were written in
  std::string where;      // for messages
};

/// Compares the session to begin with the last one of the run, if that is known, and with the state. Returns a line for each change:
/// "optimizer.lr 3e-05 -> 1e-05 (takes effect now)". `allow` names changes that are otherwise refused: a key of the configuration or
/// its section ("data", "data.seed", "precision"). Throws invalid_configuration that lists every change that the state cannot be continued
/// with, and the names that allow it where that makes sense.
std::vector<std::string> changes_since(const std::optional<SessionRecord>& last, const SessionRecord& now, const Config& config,
                                       const ContinuedState& state, const std::vector<std::string>& allow);

/// The names that `allow` can have.
const std::vector<std::string>& allowable_changes();

/// How a key of the configuration touches a run that goes on.
enum class KeyEffect {
  none,        // numbers stay the same
  now,         // the update rule from the next step on
  schedule,    // learning rates to come
  length,      // of the run, and of a schedule that ends with it
  batch,       // samples a step
  rounding,    // the last bits of sums
  evaluation,  // the evaluation alone
  format,      // the bits of the state: refused, or allowed by name
  data,        // compared by content instead
};
/// Every key of Config::to_json() has one; others throw internal.
KeyEffect effect_of(const std::string& key);

}  // namespace strata::scheduler
