// The start of a run: its directory, inputs, plan, memory and state, in an order that refuses before it changes anything.
#pragma once

#include <memory>
#include <optional>

#include "core/tokens.hpp"
#include "scheduler/metrics.hpp"
#include "scheduler/run_directory.hpp"
#include "scheduler/runtime.hpp"
#include "scheduler/trainer.hpp"
#include "scheduler/trainer_record.hpp"
#include "tiers/lock.hpp"

namespace strata::scheduler {

/// A run that is ready for its next step. The lock of its directory is held until this is destroyed.
struct Session {
  std::unique_ptr<RunDirectory> directory;
  std::optional<tiers::DirectoryLock> lock;
  std::unique_ptr<Runtime> runtime;
  std::unique_ptr<TokenDataset> train_data, eval_data;  // eval_data is null without data.eval
  std::unique_ptr<MetricsWriter> metrics;
  TrainerRecord record;  // of the state that was loaded
};

/// Everything that train() does before its first step. Throws as train().
Session start_session(const TrainOptions& options);

}  // namespace strata::scheduler
