// The memory of a step: homes of the state, and the rings of buffers that it passes through.
#include <algorithm>

#include "core/error.hpp"
#include "scheduler/step_emitter.hpp"

namespace strata::scheduler {

namespace {

constexpr uint32_t kGradientStages = 3;
constexpr uint32_t kFetchStages = 4;

/// What the plan needs of every unit, taken together.
class StepMemoryPlanner {
 public:
  StepMemoryPlanner(const RunShape& shape, const Placement& placement, StepPlan& plan)
      : shape_(shape), placement_(placement), plan_(plan), map_(plan.memory) {}

  StepMemory run() {
    add_homes();
    add_unit_rings();
    add_activations();
    add_staging();
    add_inputs_and_results();
    return std::move(memory_);
  }

 private:
  int units() const { return static_cast<int>(shape_.layout.units.size()); }
  uint64_t padded(int unit) const { return shape_.layout.units[unit].padded_elements; }
  const UnitPlacement& placed(int unit) const { return placement_.units[unit]; }
  bool wide_gradients() const { return shape_.format.gradient == DType::f32; }
  bool horizontal() const {
    return placement_.accumulation == AccumulationOrder::horizontal && shape_.micro_batches > 1;
  }

  Region add(Memory memory, const char* purpose, uint64_t bytes) {
    if (bytes == 0) return {};
    return {map_.add(memory, purpose, bytes), 1};
  }

  /// A section's home. In the store it has two slots where commits there are the run's checkpoints, else it is scratch.
  void add_home(UnitHomes& homes, Section section, Tier tier, int unit) {
    const uint64_t bytes = shape_.format.bytes(section);
    if (bytes == 0) return;
    const char* purpose = section == Section::parameter ? "parameters" : "optimizer state";
    const bool in_store = tier == Tier::nvme;
    if (!in_store)
      homes.sections[static_cast<int>(section)] =
          map_.add_parts(tier == Tier::device ? Memory::device : Memory::host, purpose, padded(unit),
                         shape_.tile_elements, bytes);
    // The store's tile is the checkpoint, so it carries the parameter as well, unless an fp32 master beside it says the same.
    const bool checkpointed = placement_.all_state_in_store();
    const bool carried =
        section == Section::parameter && checkpointed && shape_.format.master != MasterFormat::fp32;
    if (!in_store && !carried) return;
    for (size_t tile = 0; tile < homes.tiles.size(); ++tile)
      homes.state_extents[static_cast<int>(section)][tile] = map_.add_extent(
          checkpointed ? Memory::store_state : Memory::store_scratch, purpose,
          extent_name(shape_.layout.units[unit].name, tile, to_string(section)),
          homes.tiles[tile].count * bytes);
  }

  void add_homes() {
    plan_.homes.resize(units());
    for (int unit = 0; unit < units(); ++unit) {
      UnitHomes& homes = plan_.homes[unit];
      homes.tiles = tile_ranges(shard_range(padded(unit), shape_.rank, shape_.world_size), shape_.tile_elements);
      for (auto& extents : homes.state_extents) extents.assign(homes.tiles.size(), kNoLocation);
      homes.gradient_extents.assign(homes.tiles.size(), kNoLocation);
      add_home(homes, Section::parameter, placed(unit).parameters, unit);
      if (shape_.forward_only) continue;
      for (Section section : {Section::master, Section::momentum, Section::variance})
        add_home(homes, section, placed(unit).optimizer, unit);
      const uint64_t bytes = shape_.format.gradient_bytes();
      if (placed(unit).gradients == Tier::nvme) {
        for (size_t tile = 0; tile < homes.tiles.size(); ++tile)
          homes.gradient_extents[tile] =
              map_.add_extent(Memory::store_scratch, "gradients",
                              extent_name(shape_.layout.units[unit].name, tile, "gradient"),
                              homes.tiles[tile].count * bytes);
      } else {
        homes.gradient =
            map_.add_parts(placed(unit).gradients == Tier::device ? Memory::device : Memory::host, "gradients",
                           padded(unit), shape_.tile_elements, bytes);
      }
    }
  }

  void add_ring(Ring& ring, const char* purpose, uint64_t slots, uint64_t elements, uint64_t bytes) {
    if (elements == 0) return;
    for (uint64_t slot = 0; slot < slots; ++slot)
      ring.slots.push_back(map_.add_parts(Memory::device, purpose, elements, shape_.tile_elements, bytes));
  }

  /// The largest padded size among the units of a class for which `needed`.
  template <typename Needed>
  uint64_t largest(UnitClass which, Needed needed) const {
    uint64_t elements = 0;
    for (int unit = 0; unit < units(); ++unit)
      if (unit_class(shape_, unit) == which && needed(unit)) elements = std::max(elements, padded(unit));
    return elements;
  }

  void add_unit_rings() {
    memory_.accumulator_homes.resize(units());
    memory_.spill_homes.resize(units());
    memory_.spill_extents.resize(units());
    for (int unit = 0; unit < units() && !shape_.forward_only; ++unit) add_accumulator_home(unit);
    for (UnitClass which : {kBlocks, kEnds, kTiedHead}) {
      const bool ring = which == kBlocks;
      add_ring(memory_.parameters[which], "parameter ring", ring ? 1 + placement_.prefetch : 1,
               largest(which, [&](int unit) { return placed(unit).parameters != Tier::device; }),
               size_bytes(shape_.format.compute));
      add_prepared(which);
      if (shape_.forward_only) continue;
      const uint64_t gradient_slots = ring && placement_.prefetch > 0 ? 2 : 1;
      add_ring(memory_.accumulators[which], "gradient accumulators", gradient_slots,
               largest(which, [&](int unit) { return memory_.accumulator_homes[unit].empty(); }), sizeof(float));
      if (!wide_gradients())
        add_ring(memory_.wire_gradients[which], "gradient ring", gradient_slots,
                 largest(which, [&](int unit) { return placed(unit).gradients != Tier::device; }),
                 shape_.format.gradient_bytes());
    }
  }

  void add_prepared(UnitClass which) {
    uint64_t prepared = 0;
    for (int unit = 0; unit < units(); ++unit) {
      if (unit_class(shape_, unit) != which) continue;
      const EngineSizes::Unit& sizes = shape_.engine.units[unit];
      prepared = std::max({prepared, sizes.prepared_forward, shape_.forward_only ? 0 : sizes.prepared_backward});
    }
    memory_.prepared[which] = add(Memory::device, "packed weights", prepared);
  }

  void add_accumulator_home(int unit) {
    if (wide_gradients() && placed(unit).gradients == Tier::device) {
      memory_.accumulator_homes[unit] = plan_.homes[unit].gradient;
      return;
    }
    // Only blocks are visited again by the next micro-batch; the ends keep their accumulator for the whole step.
    if (!horizontal() || unit_class(shape_, unit) != kBlocks) return;
    const auto& tiles = plan_.homes[unit].tiles;
    switch (placed(unit).gradients) {
      case Tier::device:
        memory_.accumulator_homes[unit] =
            map_.add_parts(Memory::device, "gradients", padded(unit), shape_.tile_elements, sizeof(float));
        return;
      case Tier::host:
        memory_.spill_homes[unit] = wide_gradients() ? plan_.homes[unit].gradient
                                                     : map_.add_parts(Memory::host, "gradients", padded(unit),
                                                                      shape_.tile_elements, sizeof(float));
        return;
      case Tier::nvme:
        if (wide_gradients()) {
          memory_.spill_extents[unit] = plan_.homes[unit].gradient_extents;
          return;
        }
        for (size_t tile = 0; tile < tiles.size(); ++tile)
          memory_.spill_extents[unit].push_back(
              map_.add_extent(Memory::store_scratch, "gradients",
                              extent_name(shape_.layout.units[unit].name, tile, "gradient sum"),
                              tiles[tile].count * sizeof(float)));
        return;
    }
  }

  void add_activations() {
    const auto micro_batches = static_cast<size_t>(shape_.micro_batches);
    const size_t copies = horizontal() ? 1 : micro_batches;
    memory_.hidden.resize(units());
    memory_.saved.resize(units());
    Region shared;
    for (int unit = 1; unit < units(); ++unit)  // the embedding has no input
      for (size_t copy = 0; copy < copies; ++copy)
        // Without a backward pass, a unit's input is over when its output is there.
        if (shape_.forward_only && unit > 2) memory_.hidden[unit].push_back(memory_.hidden[unit - 2][copy]);
        else memory_.hidden[unit].push_back(add(Memory::device, "activations", shape_.engine.hidden));
    for (int unit = 1; unit + 1 < units(); ++unit)
      for (size_t copy = 0; copy < copies; ++copy) {
        if (placed(unit).recompute && shared.empty()) shared = add(Memory::device, "activations", shape_.engine.saved);
        memory_.saved[unit].push_back(placed(unit).recompute
                                          ? shared
                                          : add(Memory::device, "activations", shape_.engine.saved));
      }
    for (size_t copy = 0; copy < micro_batches && !shape_.forward_only; ++copy)
      memory_.d_hidden.push_back(add(Memory::device, "activations", shape_.engine.hidden));
    memory_.workspace = add(Memory::device, "workspace", shape_.engine.workspace);
  }

  void add_staging() {
    bool fetches = false, scratch_gradients = false, staged_gradients = false, any_stage = false;
    bool staged[4] = {false, false, false, false};
    for (int unit = 0; unit < units(); ++unit) {
      const UnitPlacement& at = placed(unit);
      fetches |= at.parameters == Tier::nvme;
      if (shape_.forward_only) continue;
      if (at.parameters == Tier::device && at.gradients == Tier::device && at.optimizer == Tier::device) continue;
      scratch_gradients |= at.gradients == Tier::nvme;
      staged[0] |= at.parameters != Tier::host;
      for (int section = 1; section < 4; ++section)
        staged[section] |= at.optimizer != Tier::host && shape_.format.bytes(kSections[section]) > 0;
      staged_gradients |= at.gradients != Tier::host;
    }
    any_stage = staged[0] || staged[1] || staged[2] || staged[3] || staged_gradients;
    for (uint32_t i = 0; any_stage && i < placement_.staging_tiles; ++i) {
      StepMemory::UpdateStage& stage = memory_.update_stages.emplace_back();
      for (int section = 0; section < 4; ++section)
        if (staged[section])
          stage.sections[section] =
              add(Memory::host, "staging", shape_.tile_elements * shape_.format.bytes(kSections[section]));
      if (staged_gradients)
        stage.gradient = add(Memory::host, "staging", shape_.tile_elements * shape_.format.gradient_bytes());
    }
    for (uint32_t i = 0; fetches && i < kFetchStages; ++i)
      memory_.fetch_stages.push_back(
          add(Memory::host, "staging", shape_.tile_elements * shape_.format.bytes(Section::parameter)));
    for (uint32_t i = 0; scratch_gradients && i < kGradientStages; ++i)
      memory_.gradient_stages.push_back(
          add(Memory::host, "staging",
              shape_.tile_elements * (horizontal() ? sizeof(float) : shape_.format.gradient_bytes())));
  }

  void add_inputs_and_results() {
    const auto micro_batches = static_cast<uint64_t>(shape_.micro_batches);
    const uint64_t token_bytes = static_cast<uint64_t>(shape_.tokens_per_micro_batch) * sizeof(int32_t);
    const auto per_micro_batch = [&](Memory memory) {
      Region region;
      for (uint64_t i = 0; i < micro_batches; ++i) {
        const LocationId id = map_.add(memory, "tokens", token_bytes);
        if (i == 0) region.first = id;
        ++region.count;
      }
      return region;
    };
    plan_.host_tokens = per_micro_batch(Memory::host);
    plan_.host_labels = per_micro_batch(Memory::host);
    const Region tokens = per_micro_batch(Memory::device), labels = per_micro_batch(Memory::device);
    for (uint32_t i = 0; i < micro_batches; ++i) {
      memory_.tokens.push_back({tokens.part(i), 1});
      memory_.labels.push_back({labels.part(i), 1});
    }
    memory_.losses = add(Memory::device, "results", micro_batches * sizeof(double));
    plan_.host_losses = map_.add(Memory::host, "results", micro_batches * sizeof(double));
    if (shape_.forward_only) return;
    // One contiguous array of block sums, so that one copy brings them all.
    uint64_t blocks = 0;
    for (int unit = 0; unit < units(); ++unit) blocks += padded(unit) / kBlockElements;
    memory_.block_sums = add(Memory::device, "results", blocks * sizeof(double));
    plan_.host_block_sums = map_.add(Memory::host, "results", blocks * sizeof(double));
  }

  const RunShape& shape_;
  const Placement& placement_;
  StepPlan& plan_;
  MemoryMap& map_;
  StepMemory memory_;
};

}  // namespace

UnitClass unit_class(const RunShape& shape, int unit) {
  switch (shape.layout.units[unit].kind) {
    case UnitKind::embedding: return kEnds;
    case UnitKind::block: return kBlocks;
    case UnitKind::head: return shape.tied_head ? kTiedHead : kEnds;
  }
  return kBlocks;
}

StepMemory plan_memory(const RunShape& shape, const Placement& placement, StepPlan& plan) {
  return StepMemoryPlanner(shape, placement, plan).run();
}

}  // namespace strata::scheduler
