// A planned run with its memory taken: device, engine, slabs, store, update threads and executor, made in that order and released
// in reverse.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cpu_adam/adam.hpp"
#include "gpu/device.hpp"
#include "gpu/engine.hpp"
#include "scheduler/executor.hpp"
#include "scheduler/run_plan.hpp"
#include "scheduler/training_state.hpp"
#include "tiers/memory.hpp"
#include "tiers/store.hpp"

namespace strata::scheduler {

/// A plan and what it was made with; nothing large is taken yet.
struct PlannedRun {
  std::unique_ptr<gpu::Device> device;
  std::unique_ptr<gpu::Engine> engine;
  RunPlan plan;
};
struct PlanRunOptions {
  PlanConstraints constraints{};
  std::filesystem::path system_root = "/";  // stands before /proc and /sys, where the machine's memory is looked up (for tests)
  std::filesystem::path model_directory{};  // has config.json; empty = model.path
};
/// Reads the model's description and plans. Throws what make_run_plan and read_model_description throw.
PlannedRun plan_run(const Config& config, const PlanRunOptions& options = {});
/// Plans the evaluation of a model alone: its parameters are all the state there is. Throws what make_run_plan throws.
PlannedRun plan_evaluation(const Config& config, const ModelDescription& model);

enum class StoreMode {
  create,    // a new store; an old one with the same paths is replaced
  continue_  // the store of an earlier run, with its commits
};

class Runtime {
 public:
  /// Takes every slab of the plan, opens the store and starts every thread of the run; nothing is started later. Throws
  /// resource_exhausted (memory, disk, threads), busy, io, invalid_data, data_corruption. `on_slow`: ExecutorOptions.
  Runtime(PlannedRun planned, StoreMode store_mode, std::function<void(const std::string&)> on_slow = {});

  const RunPlan& plan() const { return planned_.plan; }
  gpu::Device& device() { return *planned_.device; }
  tiers::NvmeStore* store() { return store_.get(); }
  Executor& executor() { return *executor_; }
  TrainingState& state() { return *state_; }
  const AdamUpdater& updater() const { return adam_; }
  /// Lines for the log: what was taken and how.
  std::vector<std::string> description() const;

 private:
  PlannedRun planned_;
  AdamUpdater adam_;
  gpu::DeviceBuffer device_memory_;
  std::shared_ptr<tiers::MemorySlab> host_memory_;  // shared with the transfers that are under way
  std::unique_ptr<tiers::NvmeStore> store_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<TrainingState> state_;
};

}  // namespace strata::scheduler
