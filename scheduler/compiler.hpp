// Compiles a placement into exact memory maps and the step programs of a run.
#pragma once

#include <cstdint>
#include <vector>

#include "core/layout.hpp"
#include "gpu/engine.hpp"
#include "scheduler/placement.hpp"
#include "scheduler/program_builder.hpp"
#include "scheduler/state_format.hpp"
#include "scheduler/step_program.hpp"

namespace strata::scheduler {

/// The sizes of the engine's buffers, in bytes, and its FLOPs for one micro-batch.
struct EngineSizes {
  uint64_t hidden = 0, saved = 0, workspace = 0, tables = 0;
  struct Unit {
    uint64_t prepared_forward = 0, prepared_backward = 0;
    double forward_flops = 0, backward_flops = 0;
  };
  std::vector<Unit> units;
};
EngineSizes engine_sizes(const gpu::Engine& engine, const ModelLayout& layout);

/// Everything that decides a program besides the placement.
struct RunShape {
  ModelLayout layout;
  bool tied_head = false;
  StateFormat format;
  EngineSizes engine;
  int64_t micro_batches = 1;     // per step
  int64_t tokens_per_micro_batch = 0;
  uint64_t tile_elements = 0;    // a multiple of kBlockElements
  int rank = 0, world_size = 1;
  bool poison = false;
  bool forward_only = false;  // evaluation alone: the parameters are all state, and nothing is kept for a backward pass
  std::vector<std::vector<Range>> undecayed = {};  // by unit: elements without weight decay; empty: all decay
};

/// As many elements as make `tile_bytes` of training state, at least one block.
uint64_t tile_elements(uint64_t tile_bytes, const StateFormat& format);

/// Where a unit's state lives between steps. A region is empty where the placement has no such home.
struct UnitHomes {
  std::vector<Range> tiles;
  Region sections[4];        // by Section; in device or host memory
  Region gradient;           // device or host
  std::vector<LocationId> state_extents[4];  // by Section: per tile, kNoLocation where not in the store
  std::vector<LocationId> gradient_extents;  // per tile, in the store's scratch
};

struct StepPlan {
  MemoryMap memory;
  std::vector<UnitHomes> homes;

  // What the trainer writes before and reads after a program, in host memory.
  Region host_tokens, host_labels;  // one part a micro-batch, int32
  LocationId host_losses = kNoLocation;      // double per micro-batch
  LocationId host_block_sums = kNoLocation;  // double per block of every unit, in unit order

  Program forward_backward;         // gradients and their norm; nothing durable changes
  Program update_forward_backward;  // lazy: applies the previous step's gradients on the way
  Program update;                   // applies the gradients, commits
  Program evaluate;                 // losses alone
};

/// Memory and homes alone: whether a placement fits.
StepPlan compile_memory(const RunShape& shape, const Placement& placement);
/// The programs of one training step alone, in order (RunPlan::step_programs): how long it would take with a placement.
std::vector<Program> compile_training_step(const RunShape& shape, const Placement& placement);
/// Plans memory exactly and compiles the four programs, of a forward-only shape the evaluation alone. It does not judge
/// whether the memory is there.
StepPlan compile_step_plan(const RunShape& shape, const Placement& placement);

}  // namespace strata::scheduler
