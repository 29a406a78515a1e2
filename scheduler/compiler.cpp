#include "scheduler/compiler.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "scheduler/step_emitter.hpp"

namespace strata::scheduler {

EngineSizes engine_sizes(const gpu::Engine& engine, const ModelLayout& layout) {
  EngineSizes sizes;
  sizes.hidden = engine.hidden_bytes();
  sizes.saved = engine.saved_bytes();
  sizes.workspace = engine.workspace_bytes();
  sizes.tables = engine.table_bytes();
  for (int unit = 0; unit < static_cast<int>(layout.units.size()); ++unit)
    sizes.units.push_back({engine.prepared_bytes(unit, gpu::Pass::forward),
                           engine.prepared_bytes(unit, gpu::Pass::backward), engine.forward_flops(unit),
                           engine.backward_flops(unit)});
  return sizes;
}

uint64_t tile_elements(uint64_t tile_bytes, const StateFormat& format) {
  return std::max<uint64_t>(1, tile_bytes / format.state_bytes() / kBlockElements) * kBlockElements;
}

StepPlan compile_memory(const RunShape& shape, const Placement& placement) {
  StepPlan plan;
  plan_memory(shape, placement, plan);
  return plan;
}

std::vector<Program> compile_training_step(const RunShape& shape, const Placement& placement) {
  StepPlan plan;
  const StepMemory memory = plan_memory(shape, placement, plan);
  std::vector<Program> programs;
  if (shape.forward_only) {
    programs.push_back(emit_evaluation(shape, placement, plan, memory));
    return programs;
  }
  programs.push_back(emit_training_step(shape, placement, plan, memory, /*with_update=*/placement.lazy_update));
  if (!placement.lazy_update) programs.push_back(emit_update(shape, placement, plan, memory));
  return programs;
}

StepPlan compile_step_plan(const RunShape& shape, const Placement& placement) {
  STRATA_CHECK(shape.world_size == 1 && shape.rank == 0, "world size {}", shape.world_size);
  STRATA_CHECK(placement.units.size() == shape.layout.units.size(), "{} placements", placement.units.size());
  StepPlan plan;
  const StepMemory memory = plan_memory(shape, placement, plan);
  plan.evaluate = emit_evaluation(shape, placement, plan, memory);
  if (shape.forward_only) return plan;
  plan.forward_backward = emit_training_step(shape, placement, plan, memory, /*with_update=*/false);
  plan.update_forward_backward = emit_training_step(shape, placement, plan, memory, /*with_update=*/true);
  plan.update = emit_update(shape, placement, plan, memory);
  return plan;
}

}  // namespace strata::scheduler
