// The trainer: the step loop of a run, from the first sample or the last commit to the final checkpoint.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/config.hpp"
#include "scheduler/metrics.hpp"
#include "scheduler/store_reference.hpp"
#include "scheduler/trainer_record.hpp"
#include "scheduler/training_state.hpp"

namespace strata::scheduler {

struct TrainOptions {
  Config config;
  std::filesystem::path run_directory;
  bool resume = true;              // continue the run directory's newest state, where there is one
  std::vector<std::string> discard;  // names of runs and stores whose saved state may be lost by not resuming (scheduler/run_losses.hpp)
  std::vector<std::string> allow;    // changes to go on with that are otherwise refused (scheduler/session_changes.hpp)
  /// A checkpoint (or folder of them) of another run, whose weights, moments and progress a new run in `run_directory` begins with.
  std::filesystem::path from;
  bool reseed = false;  // with `from`: the data, its order included, may be others than the checkpoint's run had
  std::vector<StoreMove> store_moves;  // where directories of the run's store are now that were moved
  bool hash_state = false;         // compute TrainSummary::state_hash (reads all state once)
  const std::atomic<bool>* stop = nullptr;  // set from a signal handler: end after the step under way
  std::function<void(const std::string&)> narrate;      // a line for the log
  std::function<void(const StepReport&)> on_step;
  std::function<void(const EvaluationReport&)> on_evaluation;
  ProgressCallback on_data_progress;   // while the token files are checked at start, in bytes
  std::function<void(uint64_t done, uint64_t total)> on_evaluation_progress;  // in samples
  std::filesystem::path system_root = "/";  // as PlanRunOptions::system_root
  ProgressCallback on_state_progress;  // while weights are loaded and checkpoints written
};

struct TrainSummary {
  int64_t steps_done = 0;
  int64_t resumed_from = 0;
  bool interrupted = false;
  double first_loss = 0, last_loss = 0;  // of the steps of this call
  std::filesystem::path checkpoint;
  std::string state_hash;
};

/// Trains to config.steps or until stopped, leaving a checkpoint. Everything that can be refused (budgets, model, data, directories)
/// is refused before the first step, and before an earlier run's state is touched; only the weights' values (finite in the compute
/// format) are looked at while they are loaded. A run that made progress is never started over
/// unless `resume` is false and what is lost is named: without whole state to continue, it is refused. What it makes is the
/// user's alone (core/file.hpp, PrivateFiles). Throws Error.
TrainSummary train(const TrainOptions& options);

}  // namespace strata::scheduler
