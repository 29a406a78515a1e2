#include "scheduler/step_emitter.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"

namespace strata::scheduler {

namespace {

constexpr int kParameter = static_cast<int>(Section::parameter);

/// Writes one program. Each method appends the operations of one idea, in the order in which a serial program would do them;
/// the builder finds what may run at the same time.
class StepEmitter {
 public:
  StepEmitter(const char* name, const RunShape& shape, const Placement& placement, const StepPlan& plan,
              const StepMemory& memory)
      : shape_(shape), placement_(placement), plan_(plan), map_(plan.memory), memory_(memory),
        builder_(name, plan.memory) {
    for (auto& ring : rings_) ring.resize(kUnitClasses);
    for (int which = 0; which < kUnitClasses; ++which) resident_[which].assign(memory.parameters[which].slots.size(), -1);
  }

  Program training_step(bool with_update) {
    load_inputs();
    if (placement_.accumulation == AccumulationOrder::vertical) {
      std::vector<int> all(shape_.micro_batches);
      for (int i = 0; i < shape_.micro_batches; ++i) all[i] = i;
      forward(all, with_update);
      head_backward(all);
      for (int unit = head() - 1; unit >= 1; --unit) block_backward(unit, all);
    } else {
      for (int micro_batch = 0; micro_batch < shape_.micro_batches; ++micro_batch) {
        forward({micro_batch}, with_update && micro_batch == 0);
        head_backward({micro_batch});
        for (int unit = head() - 1; unit >= 1; --unit) block_backward(unit, {micro_batch});
      }
    }
    embedding_backward();
    store_results(/*gradients=*/true);
    return builder_.take();
  }

  Program update() {
    for (int unit = 0; unit <= head(); ++unit) update_unit(unit, {});
    commit();
    return builder_.take();
  }

  Program evaluation() {
    load_inputs();
    std::vector<int> all(shape_.micro_batches);
    for (int i = 0; i < shape_.micro_batches; ++i) all[i] = i;
    const bool vertical = placement_.accumulation == AccumulationOrder::vertical;
    for (int micro_batch : all) {
      const std::vector<int> group = vertical ? all : std::vector<int>{micro_batch};
      forward(group, false);
      const HeadRegions at = head_regions(gpu::Pass::forward);
      for (int i : group) head_op(OpKind::head_loss, at, i);
      if (vertical) break;
    }
    store_results(/*gradients=*/false);
    return builder_.take();
  }

 private:
  struct HeadRegions {
    Region params, embedding, prepared;
  };

  int head() const { return static_cast<int>(shape_.layout.units.size()) - 1; }
  uint64_t padded(int unit) const { return shape_.layout.units[unit].padded_elements; }
  uint32_t tiles(int unit) const { return static_cast<uint32_t>(plan_.homes[unit].tiles.size()); }
  const UnitPlacement& placed(int unit) const { return placement_.units[unit]; }
  size_t copy_index(int micro_batch) const {
    return placement_.accumulation == AccumulationOrder::vertical ? micro_batch : 0;
  }
  Region hidden(int unit, int micro_batch) const {
    const auto& copies = memory_.hidden[unit];
    return copies[std::min(copy_index(micro_batch), copies.size() - 1)];
  }
  Region saved(int unit, int micro_batch) const {
    const auto& copies = memory_.saved[unit];
    return copies[std::min(copy_index(micro_batch), copies.size() - 1)];
  }

  Op make(OpKind kind, Resource resource, int unit, int tile, int micro_batch = -1) const {
    Op op{.kind = kind, .resource = resource, .unit = unit, .tile = tile, .micro_batch = micro_batch};
    return op;
  }
  static void set_arguments(Op& op, std::initializer_list<Region> regions) {
    size_t index = 0;
    for (const Region& region : regions) op.arguments[index++] = region.first;
  }

  // Moves ---------------------------------------------------------------------------------------------------------

  /// One transfer of `bytes`; `first` and `second` are the operation's arguments.
  void move(OpKind kind, Resource resource, LocationId first, LocationId second, uint64_t bytes, int unit, int tile,
            bool second_is_source = false) {
    Op op = make(kind, resource, unit, tile);
    op.bytes = bytes;
    const Region a{first, 1}, b{second, 1};
    set_arguments(op, {a, b});
    if (second_is_source) builder_.append(std::move(op), {b}, {a});
    else builder_.append(std::move(op), {a}, {b});
  }
  void h2d(LocationId from, LocationId to, uint64_t bytes, int unit, int tile) {
    move(OpKind::copy_h2d, Resource::h2d, from, to, bytes, unit, tile);
  }
  void d2h(LocationId from, LocationId to, uint64_t bytes, int unit, int tile) {
    move(OpKind::copy_d2h, Resource::d2h, from, to, bytes, unit, tile);
  }
  void read_extent(LocationId extent, LocationId to, uint64_t bytes, int unit, int tile) {
    const bool state = map_[extent].memory == Memory::store_state;
    move(state ? OpKind::read_state : OpKind::read_scratch, Resource::nvme_read, extent, to, bytes, unit, tile);
  }
  void write_extent(LocationId extent, LocationId from, uint64_t bytes, int unit, int tile) {
    const bool state = map_[extent].memory == Memory::store_state;
    move(state ? OpKind::write_state : OpKind::write_scratch, Resource::nvme_write, extent, from, bytes, unit, tile,
         /*second_is_source=*/true);
    if (state) written_.push_back({extent, 1});
  }

  void poison(const Region& region) {
    if (!shape_.poison) return;
    for (uint32_t i = 0; i < region.count; ++i) {
      const Region part{region.part(i), 1};
      const bool on_device = map_[part.first].memory == Memory::device;
      Op op = make(on_device ? OpKind::poison_device : OpKind::poison_host,
                   on_device ? Resource::compute : Resource::cpu, -1, -1);
      set_arguments(op, {part});
      builder_.append(std::move(op), {}, {part});
    }
  }

  /// The next buffer of a ring; what it held is over.
  const Region& next(const std::vector<Region>& slots, size_t& cursor) {
    STRATA_CHECK(!slots.empty(), "empty ring");
    const Region& slot = slots[cursor++ % slots.size()];
    poison(slot);
    return slot;
  }

  // Parameters ----------------------------------------------------------------------------------------------------

  /// A ring slot for the unit's parameters, its old content forgotten.
  Region claim_slot(int unit) {
    const UnitClass which = unit_class(shape_, unit);
    size_t& cursor = rings_[0][which];
    const auto& slots = memory_.parameters[which].slots;
    STRATA_CHECK(!slots.empty(), "no parameter ring for unit {}", unit);
    resident_[which][cursor % slots.size()] = unit;
    return next(slots, cursor).head(tiles(unit));
  }

  /// The unit's parameters on the device: where they live, or still are, or are brought to now.
  Region fetch(int unit) {
    if (placed(unit).parameters == Tier::device) return plan_.homes[unit].sections[kParameter];
    const UnitClass which = unit_class(shape_, unit);
    for (size_t slot = 0; slot < resident_[which].size(); ++slot)
      if (resident_[which][slot] == unit) return memory_.parameters[which].slots[slot].head(tiles(unit));
    const Region slot = claim_slot(unit);
    const UnitHomes& homes = plan_.homes[unit];
    for (uint32_t tile = 0; tile < tiles(unit); ++tile) {
      const uint64_t bytes = homes.tiles[tile].count * shape_.format.bytes(Section::parameter);
      if (placed(unit).parameters == Tier::host) {
        h2d(homes.sections[kParameter].part(tile), slot.part(tile), bytes, unit, tile);
      } else {
        const Region& stage = next(memory_.fetch_stages, fetch_cursor_);
        read_extent(homes.state_extents[kParameter][tile], stage.first, bytes, unit, tile);
        h2d(stage.first, slot.part(tile), bytes, unit, tile);
      }
    }
    return slot;
  }

  Region prepare(int unit, gpu::Pass pass, const Region& params, const Region& embedding) {
    const auto& sizes = shape_.engine.units[unit];
    if ((pass == gpu::Pass::forward ? sizes.prepared_forward : sizes.prepared_backward) == 0) return {};
    const Region prepared = memory_.prepared[unit_class(shape_, unit)];
    poison(prepared);
    Op op = make(OpKind::prepare, Resource::compute, unit, -1);
    op.pass = pass;
    set_arguments(op, {params, embedding, prepared});
    builder_.append(std::move(op), {params, embedding}, {prepared});
    return prepared;
  }

  // Update --------------------------------------------------------------------------------------------------------

  /// Applies the unit's gradient. `slot`, where not empty, also receives the new parameters on the device.
  void update_unit(int unit, const Region& slot) {
    for (uint32_t tile = 0; tile < tiles(unit); ++tile) {
      const UnitPlacement& at = placed(unit);
      if (at.parameters == Tier::device && at.gradients == Tier::device && at.optimizer == Tier::device)
        update_tile_on_device(unit, tile);
      else
        update_tile(unit, tile, slot);
    }
  }

  Op adam_op(OpKind kind, Resource resource, int unit, int tile, const Region (&sections)[4], const Region& gradient) {
    Op op = make(kind, resource, unit, tile);
    op.elements = plan_.homes[unit].tiles[tile].count;
    op.bytes = op.elements * (2 * shape_.format.state_bytes() + shape_.format.gradient_bytes() -
                              (shape_.format.update_reads_parameter() ? 0 : shape_.format.bytes(Section::parameter)));
    set_arguments(op, {sections[0], sections[1], sections[2], sections[3], gradient});
    return op;
  }

  void update_tile_on_device(int unit, uint32_t tile) {
    const UnitHomes& homes = plan_.homes[unit];
    Region sections[4];
    for (int section = 0; section < 4; ++section)
      if (!homes.sections[section].empty()) sections[section] = {homes.sections[section].part(tile), 1};
    const Region gradient{homes.gradient.part(tile), 1};
    builder_.append(adam_op(OpKind::adam_device, Resource::compute, unit, tile, sections, gradient),
                    {sections[0], sections[1], sections[2], sections[3], gradient},
                    {sections[0], sections[1], sections[2], sections[3]});
  }

  void update_tile(int unit, uint32_t tile, const Region& slot) {
    const UnitHomes& homes = plan_.homes[unit];
    const uint64_t elements = homes.tiles[tile].count;
    const StepMemory::UpdateStage* stage = nullptr;
    if (!memory_.update_stages.empty()) stage = &memory_.update_stages[stage_cursor_++ % memory_.update_stages.size()];

    // In: every section to host memory, from wherever it lives.
    Region sections[4];
    for (int section = 0; section < 4; ++section) {
      const uint64_t bytes = elements * shape_.format.bytes(kSections[section]);
      if (bytes == 0) continue;
      const Tier tier = section == kParameter ? placed(unit).parameters : placed(unit).optimizer;
      if (tier == Tier::host) {
        sections[section] = {homes.sections[section].part(tile), 1};
        continue;
      }
      sections[section] = stage->sections[section];
      poison(sections[section]);
      if (section == kParameter && !shape_.format.update_reads_parameter()) continue;
      if (tier == Tier::device)
        d2h(homes.sections[section].part(tile), sections[section].first, bytes, unit, tile);
      else
        read_extent(homes.state_extents[section][tile], sections[section].first, bytes, unit, tile);
    }
    Region gradient;
    const uint64_t gradient_bytes = elements * shape_.format.gradient_bytes();
    if (placed(unit).gradients == Tier::host) {
      gradient = {homes.gradient.part(tile), 1};
    } else {
      gradient = stage->gradient;
      poison(gradient);
      if (placed(unit).gradients == Tier::device)
        d2h(homes.gradient.part(tile), gradient.first, gradient_bytes, unit, tile);
      else
        read_extent(homes.gradient_extents[tile], gradient.first, gradient_bytes, unit, tile);
    }

    builder_.append(adam_op(OpKind::adam_cpu, Resource::cpu, unit, tile, sections, gradient),
                    {sections[0], sections[1], sections[2], sections[3], gradient},
                    {sections[0], sections[1], sections[2], sections[3]});

    // Out: back home, and ahead to the device where the forward pass waits for it.
    for (int section = 0; section < 4; ++section) {
      const uint64_t bytes = elements * shape_.format.bytes(kSections[section]);
      if (bytes == 0) continue;
      const Tier tier = section == kParameter ? placed(unit).parameters : placed(unit).optimizer;
      if (section == kParameter && !slot.empty())
        h2d(sections[section].first, slot.part(tile), bytes, unit, static_cast<int>(tile));
      if (tier == Tier::device)
        h2d(sections[section].first, homes.sections[section].part(tile), bytes, unit, static_cast<int>(tile));
      const LocationId extent = homes.state_extents[section][tile];
      if (extent != kNoLocation)
        write_extent(extent, sections[section].first, bytes, unit, static_cast<int>(tile));
    }
  }

  /// Everything that this program wrote to the store becomes current, at once.
  void commit() {
    if (written_.empty()) return;
    Op op = make(OpKind::commit, Resource::nvme_write, -1, -1);
    builder_.append(std::move(op), written_, {});
    written_.clear();
  }

  // Forward -------------------------------------------------------------------------------------------------------

  /// Brings one unit's parameters, updated first where the previous step's gradients are still to be applied.
  Region arrive(int unit, bool with_update) {
    if (with_update) {
      const bool to_device = placed(unit).parameters != Tier::device;
      const Region slot = to_device ? claim_slot(unit) : Region{};
      update_unit(unit, slot);
      if (to_device) return slot;
    }
    return fetch(unit);
  }

  void load_inputs() {
    for (int i = 0; i < shape_.micro_batches; ++i) {
      const uint64_t bytes = map_[plan_.host_tokens.part(i)].bytes;
      h2d(plan_.host_tokens.part(i), memory_.tokens[i].first, bytes, -1, -1);
      h2d(plan_.host_labels.part(i), memory_.labels[i].first, bytes, -1, -1);
    }
  }

  void forward(const std::vector<int>& micro_batches, bool with_update) {
    const Region embedding = arrive(0, with_update);
    for (int i : micro_batches) {
      Op op = make(OpKind::embedding_forward, Resource::compute, 0, -1, i);
      op.flops = shape_.engine.units[0].forward_flops;
      const Region out = hidden(1, i);
      poison(out);
      set_arguments(op, {embedding, memory_.tokens[i], out});
      builder_.append(std::move(op), {embedding, memory_.tokens[i]}, {out});
    }
    for (int unit = 1; unit < head(); ++unit) {
      const Region params = arrive(unit, with_update);
      const Region prepared = prepare(unit, gpu::Pass::forward, params, {});
      for (int i : micro_batches) {
        poison(hidden(unit + 1, i));
        run_block(OpKind::block_forward, unit, i, params, prepared);
      }
    }
    if (with_update) {
      arrive(head(), true);
      commit();
    }
  }

  void run_block(OpKind kind, int unit, int micro_batch, const Region& params, const Region& prepared) {
    Op op = make(kind, Resource::compute, unit, -1, micro_batch);
    op.flops = shape_.engine.units[unit].forward_flops;
    const Region in = hidden(unit, micro_batch), kept = saved(unit, micro_batch);
    const Region out = kind == OpKind::block_forward ? hidden(unit + 1, micro_batch) : Region{};
    if (placed(unit).recompute) poison(kept);
    poison(memory_.workspace);
    set_arguments(op, {params, prepared, in, out, kept, memory_.workspace});
    builder_.append(std::move(op), {params, prepared, in}, {out, kept, memory_.workspace});
    if (placed(unit).recompute) shared_saved_ = {unit, micro_batch};
  }

  // Backward ------------------------------------------------------------------------------------------------------

  HeadRegions head_regions(gpu::Pass pass) {
    HeadRegions at;
    at.params = fetch(head());
    if (shape_.tied_head) at.embedding = fetch(0);
    at.prepared = prepare(head(), pass, at.params, at.embedding);
    return at;
  }

  Op head_op_of(OpKind kind, const HeadRegions& at, int micro_batch) {
    Op op = make(kind, Resource::compute, head(), -1, micro_batch);
    set_arguments(op, {at.params, at.embedding, at.prepared, hidden(head(), micro_batch), memory_.labels[micro_batch],
                       memory_.workspace, memory_.losses});
    op.flops = shape_.engine.units[head()].forward_flops;
    return op;
  }

  void head_op(OpKind kind, const HeadRegions& at, int micro_batch) {
    builder_.append(
        head_op_of(kind, at, micro_batch),
        {at.params, at.embedding, at.prepared, hidden(head(), micro_batch), memory_.labels[micro_batch]},
        {memory_.workspace, memory_.losses});
  }

  void head_backward(const std::vector<int>& micro_batches) {
    const HeadRegions at = head_regions(gpu::Pass::backward);
    for (int i : micro_batches) {
      const bool first = i == 0;
      if (first) {
        accumulator_[head()] = claim_accumulator(head());
        if (shape_.tied_head) accumulator_[0] = claim_accumulator(0);
      }
      const Region gradients = accumulator_[head()], embedding = shape_.tied_head ? accumulator_[0] : Region{};
      Op op = head_op_of(OpKind::head_loss_backward, at, i);
      op.flops += shape_.engine.units[head()].backward_flops;
      op.accumulate = first ? gpu::Accumulate::first : gpu::Accumulate::add;
      op.arguments[7] = memory_.d_hidden[i].first;
      op.arguments[8] = gradients.first;
      op.arguments[9] = embedding.first;
      poison(memory_.workspace);
      builder_.append(std::move(op),
                      {at.params, at.embedding, at.prepared, hidden(head(), i), memory_.labels[i]},
                      {memory_.workspace, memory_.losses, memory_.d_hidden[i], gradients, embedding});
    }
    if (is_last(micro_batches)) finish_gradient(head());
  }

  bool is_last(const std::vector<int>& micro_batches) const {
    return micro_batches.back() + 1 == shape_.micro_batches;
  }

  void block_backward(int unit, const std::vector<int>& micro_batches) {
    const Region params = fetch(unit);
    const Region prepared = prepare(unit, gpu::Pass::backward, params, {});
    for (int i : micro_batches) {
      if (i == 0 || micro_batches.size() == 1) {
        accumulator_[unit] = claim_accumulator(unit);
        if (i > 0) load_partial_sum(unit);
      }
      if (placed(unit).recompute && shared_saved_ != std::pair{unit, i})
        run_block(OpKind::block_recompute, unit, i, params, prepared);
      Op op = make(OpKind::block_backward, Resource::compute, unit, -1, i);
      op.flops = shape_.engine.units[unit].backward_flops;
      op.accumulate = i == 0 ? gpu::Accumulate::first : gpu::Accumulate::add;
      poison(memory_.workspace);
      set_arguments(op, {params, prepared, hidden(unit, i), saved(unit, i), memory_.d_hidden[i], accumulator_[unit],
                         memory_.workspace});
      builder_.append(std::move(op), {params, prepared, hidden(unit, i), saved(unit, i)},
                      {memory_.d_hidden[i], accumulator_[unit], memory_.workspace});
    }
    if (is_last(micro_batches)) finish_gradient(unit);
    else store_partial_sum(unit);
  }

  /// All micro-batches at the end: a tied embedding's gradient is the head's sum first, then the embedding's, in either order of
  /// accumulation.
  void embedding_backward() {
    if (!shape_.tied_head) accumulator_[0] = claim_accumulator(0);
    for (int i = 0; i < shape_.micro_batches; ++i) {
      Op op = make(OpKind::embedding_backward, Resource::compute, 0, -1, i);
      op.accumulate = i == 0 && !shape_.tied_head ? gpu::Accumulate::first : gpu::Accumulate::add;
      op.flops = shape_.engine.units[0].backward_flops;
      poison(memory_.workspace);
      set_arguments(op, {memory_.tokens[i], memory_.d_hidden[i], accumulator_[0], memory_.workspace});
      builder_.append(std::move(op), {memory_.tokens[i], memory_.d_hidden[i]}, {accumulator_[0], memory_.workspace});
    }
    finish_gradient(0);
  }

  // Gradients -----------------------------------------------------------------------------------------------------

  Region claim_accumulator(int unit) {
    if (!memory_.accumulator_homes[unit].empty()) return memory_.accumulator_homes[unit];
    const UnitClass which = unit_class(shape_, unit);
    return next(memory_.accumulators[which].slots, rings_[1][which]).head(tiles(unit));
  }

  /// Horizontal accumulation: the sum over earlier micro-batches comes back to the device, or leaves it.
  void load_partial_sum(int unit) {
    const UnitHomes& homes = plan_.homes[unit];
    for (uint32_t tile = 0; tile < tiles(unit); ++tile) {
      const uint64_t bytes = homes.tiles[tile].count * sizeof(float);
      if (!memory_.spill_homes[unit].empty()) {
        h2d(memory_.spill_homes[unit].part(tile), accumulator_[unit].part(tile), bytes, unit, tile);
      } else if (!memory_.spill_extents[unit].empty()) {
        const Region& stage = next(memory_.gradient_stages, gradient_cursor_);
        read_extent(memory_.spill_extents[unit][tile], stage.first, bytes, unit, tile);
        h2d(stage.first, accumulator_[unit].part(tile), bytes, unit, tile);
      }
    }
  }

  void store_partial_sum(int unit) {
    store_gradient(unit, accumulator_[unit], sizeof(float), memory_.spill_homes[unit], memory_.spill_extents[unit]);
  }

  void store_gradient(int unit, const Region& source, uint64_t bytes_per_element, const Region& host_home,
                      const std::vector<LocationId>& extents) {
    const UnitHomes& homes = plan_.homes[unit];
    for (uint32_t tile = 0; tile < tiles(unit); ++tile) {
      const uint64_t bytes = homes.tiles[tile].count * bytes_per_element;
      if (!host_home.empty()) {
        d2h(source.part(tile), host_home.part(tile), bytes, unit, tile);
      } else if (!extents.empty()) {
        const Region& stage = next(memory_.gradient_stages, gradient_cursor_);
        d2h(source.part(tile), stage.first, bytes, unit, tile);
        write_extent(extents[tile], stage.first, bytes, unit, tile);
      }
    }
  }

  /// The unit's sum is complete: in its own format, measured for the norm, and home.
  void finish_gradient(int unit) {
    const Region sum = accumulator_[unit];
    Region finished = sum;
    if (shape_.format.gradient != DType::f32) {
      const UnitClass which = unit_class(shape_, unit);
      finished = placed(unit).gradients == Tier::device
                     ? plan_.homes[unit].gradient
                     : next(memory_.wire_gradients[which].slots, rings_[2][which]).head(tiles(unit));
      Op cast = make(OpKind::cast_gradients, Resource::compute, unit, -1);
      cast.elements = padded(unit);
      set_arguments(cast, {sum, finished});
      builder_.append(std::move(cast), {sum}, {finished});
    }
    Op norm = make(OpKind::sum_squares, Resource::compute, unit, -1);
    norm.elements = padded(unit);
    for (int before = 0; before < unit; ++before) norm.first_block += padded(before) / kBlockElements;
    set_arguments(norm, {finished, memory_.block_sums});
    builder_.append(std::move(norm), {finished}, {memory_.block_sums});
    if (placed(unit).gradients == Tier::host)
      store_gradient(unit, finished, shape_.format.gradient_bytes(), plan_.homes[unit].gradient, {});
    else if (placed(unit).gradients == Tier::nvme)
      store_gradient(unit, finished, shape_.format.gradient_bytes(), {}, plan_.homes[unit].gradient_extents);
  }

  void store_results(bool gradients) {
    d2h(memory_.losses.first, plan_.host_losses, map_[plan_.host_losses].bytes, -1, -1);
    if (gradients)
      d2h(memory_.block_sums.first, plan_.host_block_sums, map_[plan_.host_block_sums].bytes, -1, -1);
  }

  const RunShape& shape_;
  const Placement& placement_;
  const StepPlan& plan_;
  const MemoryMap& map_;
  const StepMemory& memory_;
  ProgramBuilder builder_;
  std::vector<size_t> rings_[3];  // cursors by unit class: parameters, accumulators, wire gradients
  std::vector<int> resident_[kUnitClasses];  // the unit whose parameters each slot holds
  size_t fetch_cursor_ = 0, stage_cursor_ = 0, gradient_cursor_ = 0;
  std::vector<Region> accumulator_ = std::vector<Region>(shape_.layout.units.size());
  std::vector<Region> written_;  // extents of the store since the last commit
  std::pair<int, int> shared_saved_{-1, -1};  // (unit, micro-batch) whose activations the shared buffer holds
};

}  // namespace

Program emit_training_step(const RunShape& shape, const Placement& placement, const StepPlan& plan,
                           const StepMemory& memory, bool with_update) {
  return StepEmitter(with_update ? "update_forward_backward" : "forward_backward", shape, placement, plan, memory)
      .training_step(with_update);
}

Program emit_update(const RunShape& shape, const Placement& placement, const StepPlan& plan,
                    const StepMemory& memory) {
  return StepEmitter("update", shape, placement, plan, memory).update();
}

Program emit_evaluation(const RunShape& shape, const Placement& placement, const StepPlan& plan,
                        const StepMemory& memory) {
  return StepEmitter("evaluate", shape, placement, plan, memory).evaluation();
}

}  // namespace strata::scheduler
