// What a run continues from: the newest whole state that an earlier run left, or a refusal when that run's progress cannot be found.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "scheduler/checkpoint.hpp"
#include "scheduler/run_plan.hpp"
#include "scheduler/session_changes.hpp"
#include "scheduler/trainer_record.hpp"

namespace strata::scheduler {

struct StateSource {
  bool store = false;                            // the store's newest commit
  std::unique_ptr<CheckpointReader> checkpoint;  // else this checkpoint, else the model's weights
  int64_t step = 0;

  bool found() const { return store || checkpoint != nullptr; }
};

struct ResumeRequest {
  const RunPlan& plan;
  const std::filesystem::path& run_directory;
  const TrainerRecord& identity;  // whose state may be continued
  /// Told a state before its bytes are read; throws when this session cannot continue it.
  std::function<void(const ContinuedState&)> accept;
  std::function<void(const std::string&)> narrate;
  ProgressCallback progress;      // while a checkpoint is checked; in bytes
};

/// What the plan of a run that continues in this directory keeps of the earlier one: where its state is in a store, that it stays there and
/// in tiles of the same size, however much memory this machine has. Nothing where there is no such run; find_state says what is wrong.
PlanConstraints constraints_of_run(const std::filesystem::path& run_directory, const Config& config);

/// The store's newest commit, else the newest checkpoint that is whole, its checksums verified; a damaged one is named and passed over.
/// Throws invalid_configuration when the state is another run's or this configuration does not continue it; data_corruption when
/// there are checkpoints and none is whole; invalid_data when the run's state is in a store that is not there.
StateSource find_state(const ResumeRequest& request);

}  // namespace strata::scheduler
