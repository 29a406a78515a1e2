// Emits the step programs: a step written as plain serial code over rings of buffers, one operation at a time.
#pragma once

#include <vector>

#include "scheduler/compiler.hpp"

namespace strata::scheduler {

/// Buffers that the units of one class use in turn: blocks share a ring, embedding and head have their own.
struct Ring {
  std::vector<Region> slots;
};

/// Which ring a unit uses. An untied head follows the embedding in the same buffer, since the two are never needed at once; a tied
/// head reads the embedding, so its own small unit lies beside it.
enum UnitClass { kBlocks, kEnds, kTiedHead };
inline constexpr int kUnitClasses = 3;
UnitClass unit_class(const RunShape& shape, int unit);

/// The recycled buffers of a step. Regions are empty where a placement needs none.
struct StepMemory {
  Ring parameters[kUnitClasses];    // device, compute dtype
  Ring accumulators[kUnitClasses];  // device, fp32
  Ring wire_gradients[kUnitClasses];  // device, gradient dtype, where it differs from fp32
  std::vector<Region> accumulator_homes;  // per unit: fp32 on the device for the whole step
  std::vector<Region> spill_homes;        // per unit: fp32 sums between micro-batches of a horizontal step, in host memory
  std::vector<std::vector<LocationId>> spill_extents;  // the same in the store
  Region prepared[kUnitClasses];    // device, packed weights
  std::vector<std::vector<Region>> hidden;  // [unit][micro-batch or 0]: the input of unit
  std::vector<std::vector<Region>> saved;   // [unit][micro-batch or 0]; recomputing units share one
  std::vector<Region> d_hidden;     // per micro-batch
  Region workspace;
  std::vector<Region> tokens, labels;  // per micro-batch, device
  Region losses;                    // device, a part per micro-batch
  Region block_sums;                // device, of every unit in unit order
  struct UpdateStage {
    Region sections[4];
    Region gradient;
  };
  std::vector<UpdateStage> update_stages;  // host
  std::vector<Region> fetch_stages;        // host: a tile's parameters on the way from the store to the device
  std::vector<Region> gradient_stages;     // host: a tile's gradient between the device and the store
};

/// Adds every home and buffer to plan.memory and fills plan.homes.
StepMemory plan_memory(const RunShape& shape, const Placement& placement, StepPlan& plan);

Program emit_training_step(const RunShape& shape, const Placement& placement, const StepPlan& plan,
                           const StepMemory& memory, bool with_update);
Program emit_update(const RunShape& shape, const Placement& placement, const StepPlan& plan, const StepMemory& memory);
Program emit_evaluation(const RunShape& shape, const Placement& placement, const StepPlan& plan,
                        const StepMemory& memory);

}  // namespace strata::scheduler
