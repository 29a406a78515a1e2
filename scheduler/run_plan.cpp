#include "scheduler/run_plan.hpp"

#include <algorithm>
#include <limits>

#include "core/error.hpp"
#include "gpu/host/host_device.hpp"

namespace strata::scheduler {

namespace {

constexpr int64_t kDefaultPrefetch = 2;
// A compiled step names each of them several times; this many take seconds and some hundred MB.
constexpr int64_t kMaxUnitPasses = 4096 * 128;

std::vector<Tier> allowed(const std::optional<Tier>& choice, bool has_nvme) {
  if (choice) return {*choice};
  std::vector<Tier> tiers = {Tier::device, Tier::host};
  if (has_nvme) tiers.push_back(Tier::nvme);
  return tiers;
}

TierUse use_of(const MemoryMap& map, Memory memory, const char* name, uint64_t budget) {
  TierUse use{.tier = name, .needed_bytes = map.slab_bytes(memory), .budget_bytes = budget, .parts = {}};
  for (const MemoryMap::Entry& entry : map.entries())
    if (entry.memory == memory) use.parts.push_back({entry.purpose, entry.bytes});
  return use;
}

std::vector<TierUse> tier_uses(const RunPlan& plan) {
  const Config& config = plan.config;
  const MemoryMap& map = plan.steps.memory;
  std::vector<TierUse> uses;
  uses.push_back(use_of(map, Memory::device, "device", config.device.memory_bytes));
  if (plan.shape.engine.tables > 0) {
    uses.back().needed_bytes += plan.shape.engine.tables;
    uses.back().parts.push_back({"tables", plan.shape.engine.tables});
  }
  uses.push_back(use_of(map, Memory::host, "host", config.tiers.host_memory_bytes));
  TierUse nvme{.tier = "nvme", .needed_bytes = 0, .budget_bytes = 0, .parts = {}};
  for (const auto& directory : config.tiers.nvme) nvme.budget_bytes += directory.capacity_bytes;
  if (plan.uses_store()) nvme.needed_bytes = tiers::store_bytes_needed(plan.store_options());
  uint64_t named = 0;
  for (const MemoryMap::Entry& entry : map.entries()) {
    if (entry.memory != Memory::store_state && entry.memory != Memory::store_scratch) continue;
    nvme.parts.push_back({entry.purpose + (entry.memory == Memory::store_state ? " (two slots)" : ""), entry.bytes});
    named += entry.bytes;
  }
  if (nvme.needed_bytes > named) nvme.parts.push_back({"commit records, padding", nvme.needed_bytes - named});
  uses.push_back(std::move(nvme));
  return uses;
}

/// How far a plan is from fitting: bytes over budget, over all tiers.
uint64_t missing_bytes(const RunPlan& plan) {
  uint64_t missing = 0;
  for (const TierUse& use : plan.tiers)
    if (!use.fits()) missing += use.needed_bytes - use.budget_bytes;
  return missing;
}

double simulated_step_seconds(const RunShape& shape, const Placement& placement) {
  double seconds = 0;
  for (const Program& program : compile_training_step(shape, placement)) seconds += simulate(program, MachineRates{}).seconds;
  return seconds;
}

/// Beyond some micro-batches, each further one takes the same time: steps of two numbers of them give the line.
double predicted_step_seconds(const RunShape& shape, const Placement& placement) {
  constexpr int64_t kFew = 32, kMore = 64;
  if (shape.micro_batches <= kMore) return simulated_step_seconds(shape, placement);
  RunShape part = shape;
  part.micro_batches = kFew;
  const double few = simulated_step_seconds(part, placement);
  part.micro_batches = kMore;
  const double more = simulated_step_seconds(part, placement);
  return more + (more - few) / (kMore - kFew) * static_cast<double>(shape.micro_batches - kMore);
}

std::string refusal(const RunPlan& plan) {
  std::string text = "the run does not fit its memory budgets; nothing was started\n";
  text += fmt::format("  {:8} {:>12} {:>12} {:>12}\n", "tier", "needed", "budget", "missing");
  for (const TierUse& use : plan.tiers) {
    text += fmt::format("  {:8} {:>12} {:>12} {:>12}\n", use.tier, format_bytes(use.needed_bytes),
                        format_bytes(use.budget_bytes),
                        use.fits() ? "-" : format_bytes(use.needed_bytes - use.budget_bytes));
    if (use.fits()) continue;
    for (const TierUse::Part& part : use.parts)
      text += fmt::format("    {:24} {:>12}\n", part.purpose, format_bytes(part.bytes));
  }
  text.pop_back();
  return text;
}

std::string remedy(const RunPlan& plan) {
  std::string text;
  const auto add = [&](const char* advice) { text += (text.empty() ? "" : "; ") + std::string(advice); };
  if (!plan.tiers[0].fits())
    add("raise device.memory, lower batch.micro_batch_size, batch.gradient_accumulation_steps or data.sequence_length, set "
        "placement.activations to recompute, schedule.prefetch to 0, or fewer device.threads (each has a workspace)");
  if (!plan.tiers[1].fits()) add("raise tiers.host.memory, lower schedule.tile, or place state on nvme");
  if (!plan.tiers[2].fits())
    add(plan.config.tiers.nvme.empty() ? "name a directory in tiers.nvme" : "raise the capacity in tiers.nvme");
  return text;
}

}  // namespace

bool RunPlan::uses_store() const {
  return !steps.memory.extents(Memory::store_state).empty() || !steps.memory.extents(Memory::store_scratch).empty();
}

tiers::StoreOptions RunPlan::store_options() const {
  tiers::StoreOptions options;
  for (const auto& directory : config.tiers.nvme)
    options.directories.push_back({directory.path, directory.capacity_bytes});
  options.engine = config.tiers.io_engine == "io_uring"  ? tiers::IoEngineKind::io_uring
                   : config.tiers.io_engine == "threads" ? tiers::IoEngineKind::threads
                                                         : tiers::IoEngineKind::automatic;
  options.fingerprint = fmt::format("{} {} parameters, {} compute, {} bytes of state each, tiles of {}",
                                    model.architecture, parameters(), to_string(shape.format.compute),
                                    shape.format.state_bytes(), shape.tile_elements);
  for (const auto& extent : steps.memory.extents(Memory::store_state)) options.state.push_back({extent.name, extent.bytes});
  for (const auto& extent : steps.memory.extents(Memory::store_scratch))
    options.scratch.push_back({extent.name, extent.bytes});
  return options;
}

std::vector<const Program*> RunPlan::step_programs() const {
  if (placement.lazy_update) return {&steps.update_forward_backward};
  return {&steps.forward_backward, &steps.update};
}

std::unique_ptr<gpu::Device> create_device(const Config& config) {
  if (config.device.kind == DeviceKind::cuda)
    throw Error(ErrorCode::unsupported, "this build has no CUDA device", "/device/kind", "use \"host\" or \"auto\"");
  gpu::HostDeviceOptions options;
  options.memory_bytes = config.device.memory_bytes;
  options.compute_threads = config.device.threads;
  options.random_delay_us_max = config.debug.random_delay_us;
  options.poison = config.debug.poison;
  options.seed = config.debug.seed;
  return gpu::HostDevice::create(options);
}

gpu::EngineOptions engine_options(const Config& config) {
  return {.compute = config.precision.compute,
          .micro_batch_size = config.batch.micro_batch_size,
          .sequence_length = config.data.sequence_length};
}

RunPlan make_run_plan(const Config& config, const ModelDescription& model, const gpu::Engine& engine) {
  const int64_t units = model.layers + 2;
  if (config.batch.gradient_accumulation_steps > kMaxUnitPasses / units)
    throw Error(ErrorCode::invalid_configuration,
                fmt::format("{} micro-batches a step are too many for {} layers: at most {} can be planned",
                            config.batch.gradient_accumulation_steps, model.layers, kMaxUnitPasses / units),
                "/batch/gradient_accumulation_steps", "raise batch.micro_batch_size instead");
  RunPlan plan;
  plan.config = config;
  plan.model = model;
  plan.notes = model.notes;
  RunShape& shape = plan.shape;
  shape.layout = make_layout(model);
  shape.tied_head = model.tied_head;
  shape.format = make_state_format(config.precision);
  shape.engine = engine_sizes(engine, shape.layout);
  shape.micro_batches = config.batch.gradient_accumulation_steps;
  shape.tokens_per_micro_batch = config.batch.micro_batch_size * config.data.sequence_length;
  shape.tile_elements = tile_elements(config.schedule.tile_bytes, shape.format);
  shape.poison = config.debug.poison;

  Placement base;
  base.accumulation = config.schedule.accumulation;
  base.lazy_update = config.schedule.update != UpdateMode::after_backward;
  base.prefetch = std::min<int64_t>(config.schedule.prefetch.value_or(kDefaultPrefetch), model.layers - 1);

  // Every combination that the configuration allows; the fastest in the simulator that fits wins, the first of equals.
  std::vector<bool> recomputes;
  if (config.placement.activations != ActivationPolicy::recompute) recomputes.push_back(false);
  if (config.placement.activations != ActivationPolicy::device) recomputes.push_back(true);
  const bool has_nvme = !config.tiers.nvme.empty();
  double best_seconds = std::numeric_limits<double>::infinity();
  uint64_t least_missing = std::numeric_limits<uint64_t>::max();
  std::optional<Placement> best, closest;
  for (bool recompute : recomputes)
    for (Tier optimizer : allowed(config.placement.optimizer, has_nvme))
      for (Tier parameters : allowed(config.placement.parameters, has_nvme))
        for (Tier gradients : allowed(config.placement.gradients, has_nvme)) {
          plan.placement = base;
          for (const UnitLayout& unit : shape.layout.units)
            plan.placement.units.push_back({.parameters = parameters, .gradients = gradients, .optimizer = optimizer,
                                            .recompute = recompute && unit.kind == UnitKind::block});
          plan.steps = compile_memory(shape, plan.placement);
          plan.tiers = tier_uses(plan);
          const uint64_t missing = missing_bytes(plan);
          if (missing > 0) {
            if (missing < least_missing) closest = plan.placement;
            least_missing = std::min(missing, least_missing);
            continue;
          }
          const double seconds = predicted_step_seconds(shape, plan.placement);
          if (seconds >= best_seconds) continue;
          best_seconds = seconds;
          best = plan.placement;
        }
  STRATA_CHECK(best || closest, "no placement was tried");
  plan.placement = best ? *best : *closest;
  plan.steps = best ? compile_step_plan(shape, plan.placement) : compile_memory(shape, plan.placement);
  plan.tiers = tier_uses(plan);
  if (!best) throw Error(ErrorCode::resource_exhausted, refusal(plan), {}, remedy(plan));
  if (config.schedule.prefetch && plan.placement.prefetch != *config.schedule.prefetch)
    plan.notes.push_back(fmt::format("schedule.prefetch is {}: the model has {} blocks", plan.placement.prefetch,
                                     model.layers));
  return plan;
}

}  // namespace strata::scheduler
