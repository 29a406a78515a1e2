// The step program: whatever the placement, every two operations that touch the same memory are ordered, and the bytes are what
// the placement must move.
#include "scheduler/compiler.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/scheduler/shapes.hpp"

namespace strata::scheduler {
namespace {

constexpr StateFormat kFp32{.compute = DType::f32, .master = MasterFormat::parameter, .gradient = DType::f32};
constexpr StateFormat kSplit{.compute = DType::bf16, .master = MasterFormat::split, .gradient = DType::bf16};

Placement placement_of(const RunShape& shape, Tier parameters, Tier gradients, Tier optimizer, bool recompute) {
  Placement placement;
  for (const UnitLayout& unit : shape.layout.units)
    placement.units.push_back({.parameters = parameters, .gradients = gradients, .optimizer = optimizer,
                               .recompute = recompute && unit.kind == UnitKind::block});
  return placement;
}

/// The locations that an operation touches, by what it does to them, found from its kind and arguments alone.
struct Touch {
  std::set<LocationId> reads, writes;
};

uint32_t parts_of(const RunShape& shape, int unit) {
  return static_cast<uint32_t>((shape.layout.units[unit].padded_elements + shape.tile_elements - 1) / shape.tile_elements);
}

Touch touched_by(const RunShape& shape, const Op& op) {
  Touch touch;
  const auto add = [&](std::set<LocationId>& set, int argument, uint32_t parts = 1) {
    const LocationId id = op.arguments[argument];
    for (uint32_t i = 0; id != kNoLocation && i < parts; ++i) set.insert(id + i);
  };
  const uint32_t parts = op.unit >= 0 ? parts_of(shape, op.unit) : 1;
  const uint32_t embedding = parts_of(shape, 0);
  switch (op.kind) {
    case OpKind::copy_h2d:
    case OpKind::copy_d2h:
    case OpKind::read_state:
    case OpKind::read_scratch: add(touch.reads, 0); add(touch.writes, 1); break;
    case OpKind::write_state:
    case OpKind::write_scratch: add(touch.writes, 0); add(touch.reads, 1); break;
    case OpKind::commit: break;
    case OpKind::prepare: add(touch.reads, 0, parts); add(touch.reads, 1, embedding); add(touch.writes, 2); break;
    case OpKind::embedding_forward: add(touch.reads, 0, parts); add(touch.reads, 1); add(touch.writes, 2); break;
    case OpKind::block_forward:
    case OpKind::block_recompute:
      add(touch.reads, 0, parts); add(touch.reads, 1); add(touch.reads, 2);
      add(touch.writes, 3); add(touch.writes, 4); add(touch.writes, 5);
      break;
    case OpKind::block_backward:
      add(touch.reads, 0, parts); add(touch.reads, 1); add(touch.reads, 2); add(touch.reads, 3);
      add(touch.writes, 4); add(touch.writes, 5, parts); add(touch.writes, 6);
      break;
    case OpKind::head_loss:
    case OpKind::head_loss_backward:
      add(touch.reads, 0, parts); add(touch.reads, 1, embedding); add(touch.reads, 2); add(touch.reads, 3);
      add(touch.reads, 4); add(touch.writes, 5); add(touch.writes, 6); add(touch.writes, 7);
      add(touch.writes, 8, parts); add(touch.writes, 9, embedding);
      break;
    case OpKind::embedding_backward:
      add(touch.reads, 0); add(touch.reads, 1); add(touch.writes, 2, parts); add(touch.writes, 3);
      break;
    case OpKind::cast_gradients: add(touch.reads, 0, parts); add(touch.writes, 1, parts); break;
    case OpKind::sum_squares: add(touch.reads, 0, parts); add(touch.writes, 1); break;
    case OpKind::adam_cpu:
    case OpKind::adam_device:
      for (int i = 0; i < 4; ++i) add(touch.writes, i);
      add(touch.reads, 4);
      break;
    case OpKind::poison_device:
    case OpKind::poison_host: add(touch.writes, 0); break;
  }
  return touch;
}

/// Fails unless every conflicting pair is ordered by waits and by the in-order resources.
void expect_every_conflict_ordered(const RunShape& shape, const Program& program) {
  const size_t count = program.ops.size();
  // before[i] = the operations that are surely complete when i starts.
  std::vector<std::vector<bool>> before(count, std::vector<bool>(count, false));
  std::array<int, kResourceCount> last;
  last.fill(-1);
  for (size_t i = 0; i < count; ++i) {
    const auto include = [&](size_t j) {
      before[i][j] = true;
      for (size_t k = 0; k < j; ++k)
        if (before[j][k]) before[i][k] = true;
    };
    for (uint32_t wait : program.ops[i].waits) {
      ASSERT_LT(wait, i) << "a wait points forward";
      include(wait);
    }
    int& previous = last[static_cast<int>(program.ops[i].resource)];
    if (completes_in_order(program.ops[i].resource) && previous >= 0) include(static_cast<size_t>(previous));
    previous = static_cast<int>(i);
  }
  std::map<LocationId, std::vector<std::pair<size_t, bool>>> history;  // operation, writes
  for (size_t i = 0; i < count; ++i) {
    const Touch touch = touched_by(shape, program.ops[i]);
    for (LocationId id : touch.reads) history[id].emplace_back(i, false);
    for (LocationId id : touch.writes) history[id].emplace_back(i, true);
  }
  for (const auto& [id, uses] : history)
    for (size_t b = 0; b < uses.size(); ++b)
      for (size_t a = 0; a < b; ++a) {
        if (!uses[a].second && !uses[b].second) continue;
        if (uses[a].first == uses[b].first) continue;
        ASSERT_TRUE(before[uses[b].first][uses[a].first])
            << program.name << ": operation " << uses[b].first << " (" << to_string(program.ops[uses[b].first].kind)
            << ") may run with " << uses[a].first << " (" << to_string(program.ops[uses[a].first].kind)
            << ") on location " << id;
      }
}

TEST(Compiler, OrdersEveryConflictOnEveryPlacement) {
  const Tier tiers[] = {Tier::device, Tier::host, Tier::nvme};
  for (bool tied : {false, true})
    for (const StateFormat& format : {kFp32, kSplit})
      for (Tier parameters : tiers)
        for (Tier gradients : tiers)
          for (Tier optimizer : tiers)
            for (int variant = 0; variant < 4; ++variant) {
              RunShape shape = tiny_shape(tied, format, 2);
              shape.poison = variant == 3;
              Placement placement = placement_of(shape, parameters, gradients, optimizer, variant % 2 == 1);
              placement.accumulation = variant >= 2 ? AccumulationOrder::horizontal : AccumulationOrder::vertical;
              placement.prefetch = variant % 3;
              placement.staging_tiles = 1 + variant;
              const StepPlan plan = compile_step_plan(shape, placement);
              for (const Program* program :
                   {&plan.forward_backward, &plan.update_forward_backward, &plan.update, &plan.evaluate}) {
                expect_every_conflict_ordered(shape, *program);
                if (HasFatalFailure()) return;
              }
            }
}

uint64_t padded_total(const RunShape& shape) {
  uint64_t total = 0;
  for (const UnitLayout& unit : shape.layout.units) total += unit.padded_elements;
  return total;
}

uint64_t token_bytes(const RunShape& shape) {
  return static_cast<uint64_t>(shape.micro_batches * shape.tokens_per_micro_batch) * 4 * 2;
}

TEST(Compiler, AllOnTheDeviceMovesTokensAndResultsAlone) {
  const RunShape shape = tiny_shape(false, kSplit, 2);
  const StepPlan plan =
      compile_step_plan(shape, placement_of(shape, Tier::device, Tier::device, Tier::device, false));
  EXPECT_EQ(plan.update_forward_backward.bytes(Resource::h2d), token_bytes(shape));
  EXPECT_EQ(plan.update_forward_backward.bytes(Resource::d2h),
            shape.micro_batches * 8 + padded_total(shape) / kBlockElements * 8);
  EXPECT_EQ(plan.update_forward_backward.bytes(Resource::nvme_read), 0u);
  EXPECT_EQ(plan.update_forward_backward.bytes(Resource::nvme_write), 0u);
}

TEST(Compiler, OptimizerInTheStoreReadsTenAndWritesTwelveBytesPerParameter) {
  const RunShape shape = tiny_shape(false, kSplit, 1);
  const StepPlan plan = compile_step_plan(shape, placement_of(shape, Tier::host, Tier::host, Tier::nvme, false));
  // Read: remainder, momentum, variance. Written: those and the parameters, which make the tile a checkpoint.
  EXPECT_EQ(plan.update_forward_backward.bytes(Resource::nvme_read), 10 * padded_total(shape));
  EXPECT_EQ(plan.update_forward_backward.bytes(Resource::nvme_write), 12 * padded_total(shape));
}

TEST(Compiler, VerticalOrderFetchesParametersOncePerPassWhateverTheMicroBatches) {
  for (int64_t micro_batches : {1, 4}) {
    const RunShape shape = tiny_shape(false, kSplit, micro_batches);
    Placement placement = placement_of(shape, Tier::host, Tier::host, Tier::host, false);
    placement.prefetch = 0;
    const StepPlan plan = compile_step_plan(shape, placement);
    uint64_t expected = token_bytes(shape) + 2 * padded_total(shape);  // forward: every unit once
    for (size_t unit = 1; unit + 1 < shape.layout.units.size(); ++unit)
      expected += 2 * shape.layout.units[unit].padded_elements;        // backward: every block once,
    expected -= 2 * shape.layout.units[shape.layout.units.size() - 2].padded_elements;  // the last is still there
    EXPECT_EQ(plan.forward_backward.bytes(Resource::h2d), expected) << micro_batches << " micro-batches";
  }
}

TEST(Compiler, HorizontalOrderFetchesParametersForEveryMicroBatch) {
  const RunShape shape = tiny_shape(false, kSplit, 3);
  Placement vertical = placement_of(shape, Tier::host, Tier::host, Tier::host, false);
  Placement horizontal = vertical;
  horizontal.accumulation = AccumulationOrder::horizontal;
  const uint64_t once = compile_step_plan(shape, vertical).forward_backward.bytes(Resource::h2d);
  const uint64_t every = compile_step_plan(shape, horizontal).forward_backward.bytes(Resource::h2d);
  EXPECT_GT(every, 2 * once);
}

TEST(Compiler, CommitsAreOnlyThereWhenTheStoreHoldsTheWholeState) {
  const RunShape shape = tiny_shape(false, kSplit, 1);
  const auto commits = [&](Tier parameters, Tier optimizer) {
    const StepPlan plan = compile_step_plan(shape, placement_of(shape, parameters, Tier::host, optimizer, false));
    int count = 0;
    for (const Op& op : plan.update.ops) count += op.kind == OpKind::commit;
    return count;
  };
  EXPECT_EQ(commits(Tier::nvme, Tier::nvme), 1);
  EXPECT_EQ(commits(Tier::device, Tier::nvme), 1);
  EXPECT_EQ(commits(Tier::nvme, Tier::host), 0);
  EXPECT_EQ(commits(Tier::host, Tier::host), 0);
}

TEST(Compiler, NamesExtentsAfterUnitTileAndContent) {
  const RunShape shape = tiny_shape(false, kSplit, 1);
  const StepPlan plan = compile_memory(shape, placement_of(shape, Tier::nvme, Tier::nvme, Tier::nvme, false));
  std::set<std::string> state, scratch;
  for (const auto& extent : plan.memory.extents(Memory::store_state)) state.insert(extent.name);
  for (const auto& extent : plan.memory.extents(Memory::store_scratch)) scratch.insert(extent.name);
  for (const char* name : {"embedding tile 0 parameter", "block 0 tile 1 master", "block 2 tile 0 momentum", "head tile 0 variance"})
    EXPECT_EQ(state.count(name), 1u) << name;
  EXPECT_EQ(scratch.count("block 2 tile 0 gradient"), 1u);
}

TEST(Compiler, PlansA70BModelWithOffsetsFarOver32Bits) {
  ModelDescription model = tiny_llama(false, 80);
  model.vocab_size = 128256;
  model.hidden_size = 8192;
  model.heads = 64;
  model.kv_heads = 8;
  model.head_dim = 128;
  model.intermediate_size = 28672;
  RunShape shape = tiny_shape(false, kSplit, 1, tile_elements(64 << 20, kSplit));
  shape.layout = make_layout(model);
  shape.engine.units.assign(shape.layout.units.size(), {});
  const StepPlan plan = compile_memory(shape, placement_of(shape, Tier::host, Tier::host, Tier::host, true));
  EXPECT_GT(shape.layout.elements(), 70'000'000'000u);
  // Parameters, gradients, remainder and two moments: 14 bytes each, and little else.
  EXPECT_GE(plan.memory.slab_bytes(Memory::host), 14 * shape.layout.elements());
  EXPECT_LT(plan.memory.slab_bytes(Memory::host), 14 * shape.layout.elements() * 1.001);
  uint64_t end = 0;
  for (size_t id = 0; id < plan.memory.size(); ++id) {
    const Location& location = plan.memory[static_cast<LocationId>(id)];
    if (location.memory != Memory::host) continue;
    ASSERT_GE(location.position, end) << "locations overlap";
    end = location.position + location.bytes;
  }
  EXPECT_GT(end, uint64_t{1} << 39);
}

TEST(Compiler, AnEmbeddingOfFourGigaElementsIsCutIntoTiles) {
  ModelDescription model = tiny_llama(true, 1);
  model.vocab_size = int64_t{1} << 26;
  const ModelLayout layout = make_layout(model);
  ASSERT_EQ(layout.units[0].elements, uint64_t{1} << 32);
  RunShape shape = tiny_shape(true, kSplit, 1, tile_elements(16 << 20, kSplit));
  shape.layout = layout;
  shape.engine.units.assign(layout.units.size(), {});
  const StepPlan plan = compile_memory(shape, placement_of(shape, Tier::nvme, Tier::nvme, Tier::nvme, false));
  uint64_t covered = 0;
  for (const Range& tile : plan.homes[0].tiles) {
    EXPECT_EQ(tile.first, covered);
    covered += tile.count;
  }
  EXPECT_EQ(covered, layout.units[0].padded_elements);
}

}  // namespace
}  // namespace strata::scheduler
