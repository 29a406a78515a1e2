// The plan of a run: the configuration brought together with the model, a placement chosen or checked, memory counted exactly, and
// what does not fit refused with a table before any work.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/config.hpp"
#include "core/model.hpp"
#include "gpu/device.hpp"
#include "gpu/engine.hpp"
#include "scheduler/compiler.hpp"
#include "scheduler/machine_memory.hpp"
#include "scheduler/simulator.hpp"
#include "tiers/store.hpp"

namespace strata::scheduler {

struct TierUse {
  std::string tier;  // "device", "host", "nvme"
  uint64_t needed_bytes = 0;
  uint64_t budget_bytes = 0;
  struct Part {
    std::string purpose;
    uint64_t bytes = 0;
  };
  std::vector<Part> parts;
  /// The store's directories, each with what it is dealt. An extent is never split, so that all together may fit where one does not.
  std::vector<tiers::StoreNeeds::Directory> directories{};
  uint64_t missing_bytes() const;
  bool fits() const { return missing_bytes() == 0; }
};

struct RunPlan {
  Config config;  // with the sizes that were left to Strata filled in
  ModelDescription model;
  std::filesystem::path model_directory;  // whose config.json and other files go into checkpoints
  RunShape shape;
  Placement placement;
  StepPlan steps;
  std::vector<TierUse> tiers;
  MemoryInfo memory;               // of this machine, when the plan was made
  MemoryNeeds memory_needs;        // device memory counts where the device is this machine's processors
  uint64_t epoch_samples = 0;      // of the training files; 0: not looked at
  std::vector<std::string> notes;  // choices made and values that differ from the configuration, each with its reason

  uint64_t parameters() const { return shape.layout.elements(); }
  /// Parameters, gradients and optimizer state, padding left out.
  uint64_t training_state_bytes() const { return parameters() * shape.format.training_bytes(); }
  /// Whether any location is in the store.
  bool uses_store() const;
  tiers::StoreOptions store_options() const;
  /// The programs of one training step, in order.
  std::vector<const Program*> step_programs() const;
};

/// The device that the configuration names. Throws unsupported when this build or machine has none such.
std::unique_ptr<gpu::Device> create_device(const Config& config);

/// What a resumed run keeps of the plan that its state was written with, where the configuration leaves it open, and what is planned.
struct PlanConstraints {
  bool state_in_store = false;     // the optimizer stays in the store
  uint64_t tile_elements = 0;      // of the store's tiles; 0 = chosen
  bool forward_only = false;       // for evaluation alone (RunShape::forward_only)
};

/// Chooses what the configuration leaves open and checks the rest: the same for the same configuration, model and `memory.available_bytes`.
/// That the machine has the memory now is not checked (require_memory does, for a run), but noted. `engine` was made
/// for this configuration on the run's device.
/// Throws resource_exhausted with a table of needs, budgets and what is missing when no allowed placement fits;
/// invalid_configuration when the run is of a size that cannot be planned (plan_bounds.hpp).
RunPlan make_run_plan(const Config& config, const ModelDescription& model, const gpu::Engine& engine,
                      const MemoryInfo& memory = memory_info(), const PlanConstraints& constraints = {});

/// The engine options of a configuration.
gpu::EngineOptions engine_options(const Config& config);

/// The plan as a table for people, and as JSON for programs (schema_version 1). `rates`, where given, add a predicted step time.
std::string plan_table(const RunPlan& plan, const std::optional<MachineRates>& rates);
std::string plan_json(const RunPlan& plan, const std::optional<MachineRates>& rates);

}  // namespace strata::scheduler
