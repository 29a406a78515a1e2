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
  bool fits() const { return needed_bytes <= budget_bytes; }
};

struct RunPlan {
  Config config;
  ModelDescription model;
  std::filesystem::path model_directory;  // whose config.json and other files go into checkpoints
  RunShape shape;
  Placement placement;
  StepPlan steps;
  std::vector<TierUse> tiers;
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

/// Chooses what the configuration leaves open and checks the rest. `engine` was made for this configuration on the run's device.
/// Throws resource_exhausted with a table of needs, budgets and what is missing when no allowed placement fits;
/// invalid_configuration when a step has more micro-batches than can be planned for the model's layers.
RunPlan make_run_plan(const Config& config, const ModelDescription& model, const gpu::Engine& engine);

/// The engine options of a configuration.
gpu::EngineOptions engine_options(const Config& config);

/// The plan as a table for people, and as JSON for programs (schema_version 1). `rates`, where given, add a predicted step time.
std::string plan_table(const RunPlan& plan, const std::optional<MachineRates>& rates);
std::string plan_json(const RunPlan& plan, const std::optional<MachineRates>& rates);

}  // namespace strata::scheduler
