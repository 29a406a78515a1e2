#include "scheduler/run_plan.hpp"

#include <algorithm>
#include <limits>

#include "core/error.hpp"
#include "gpu/host/host_device.hpp"
#include "scheduler/plan_bounds.hpp"

namespace strata::scheduler {

namespace {

constexpr int64_t kDefaultPrefetch = 2;
constexpr uint64_t kTileBytesOfMostModels = 16ull << 20;
// A tile more or less does not change which placement is faster; compiling this many for each of fifty does take time.
constexpr uint64_t kSimulatedTiles = 512;

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

/// Where sizes are left to Strata, device memory and host tier share what the machine can give. (The device is its processors.)
struct Budgets {
  uint64_t device_bytes = 0, host_bytes = 0;
  std::optional<uint64_t> together_bytes;

  Budgets(const Config& config, uint64_t automatic_bytes)
      : device_bytes(config.device.memory_bytes.value_or(automatic_bytes)),
        host_bytes(config.tiers.host_memory_bytes.value_or(automatic_bytes)) {
    if (!config.device.memory_bytes || !config.tiers.host_memory_bytes) together_bytes = automatic_bytes;
  }
};

std::vector<TierUse> tier_uses(const RunPlan& plan, const Budgets& budgets) {
  const MemoryMap& map = plan.steps.memory;
  std::vector<TierUse> uses;
  uses.push_back(use_of(map, Memory::device, "device", budgets.device_bytes));
  if (plan.shape.engine.tables > 0) {
    uses.back().needed_bytes += plan.shape.engine.tables;
    uses.back().parts.push_back({"tables", plan.shape.engine.tables});
  }
  uses.push_back(use_of(map, Memory::host, "host", budgets.host_bytes));
  TierUse nvme{.tier = "nvme", .needed_bytes = 0, .budget_bytes = 0, .parts = {}};
  for (const auto& directory : plan.config.tiers.nvme) nvme.budget_bytes += directory.capacity_bytes;
  if (plan.uses_store()) {
    const tiers::StoreOptions options = plan.store_options();
    if (options.directories.empty()) {
      nvme.needed_bytes = tiers::store_bytes_needed(options);
    } else {
      tiers::StoreNeeds needs = tiers::store_needs(options);
      nvme.needed_bytes = needs.bytes;
      nvme.directories = std::move(needs.directories);
    }
  }
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

uint64_t missing_together(const std::vector<TierUse>& tiers, const Budgets& budgets) {
  const uint64_t needed = tiers[0].needed_bytes + tiers[1].needed_bytes;
  return budgets.together_bytes && needed > *budgets.together_bytes ? needed - *budgets.together_bytes : 0;
}

/// The tensors of one dimension (norm gains, biases), by unit.
std::vector<std::vector<Range>> vectors_of(const ModelLayout& layout) {
  std::vector<std::vector<Range>> ranges(layout.units.size());
  for (size_t unit = 0; unit < layout.units.size(); ++unit)
    for (const TensorLayout& tensor : layout.units[unit].tensors)
      if (tensor.shape.size() < 2) ranges[unit].push_back({tensor.offset, tensor.elements});
  return ranges;
}

/// How far a plan is from fitting: bytes over budget, over all tiers.
uint64_t missing_bytes(const RunPlan& plan, const Budgets& budgets) {
  uint64_t missing = missing_together(plan.tiers, budgets);
  for (const TierUse& use : plan.tiers) missing += use.missing_bytes();
  return missing;
}

/// The shape with tiles large enough for a quick simulation.
RunShape simulated_shape(const RunShape& shape) {
  RunShape coarse = shape;
  uint64_t elements = 0;
  for (const UnitLayout& unit : shape.layout.units) elements += unit.padded_elements;
  while (elements / coarse.tile_elements > kSimulatedTiles) coarse.tile_elements *= 2;
  return coarse;
}

/// What was left to Strata becomes a number: what the plan needs, and the rest in halves, so that the same numbers give the same plan.
void fill_in_budgets(Config& config, const std::vector<TierUse>& tiers, uint64_t automatic_bytes) {
  const uint64_t device = tiers[0].needed_bytes, host = tiers[1].needed_bytes;
  const uint64_t rest = automatic_bytes - std::min(automatic_bytes, device + host);
  const auto left_by = [&](uint64_t other) { return automatic_bytes - std::min(automatic_bytes, other); };
  const auto& given_device = config.device.memory_bytes;
  const auto& given_host = config.tiers.host_memory_bytes;
  const uint64_t for_device = given_host ? std::max(device, left_by(*given_host)) : device + rest / 2;
  const uint64_t for_host = given_device ? std::max(host, left_by(*given_device)) : host + rest / 2;
  if (!config.device.memory_bytes) config.device.memory_bytes = std::max<uint64_t>(for_device, 1);
  if (!config.tiers.host_memory_bytes) config.tiers.host_memory_bytes = std::max<uint64_t>(for_host, 1);
}

void add_memory_notes(RunPlan& plan, const Config& given, uint64_t automatic_bytes) {
  if (!given.device.memory_bytes || !given.tiers.host_memory_bytes)
    plan.notes.push_back(fmt::format(
        "{} auto: {} of the {} that this machine can give now, {} left to the system and {} to the program",
        given.device.memory_bytes        ? "tiers.host.memory is"
        : given.tiers.host_memory_bytes ? "device.memory is"
                                         : "device.memory and tiers.host.memory are",
        format_bytes(automatic_bytes), format_bytes(plan.memory.available_bytes),
        format_bytes(memory_reserve_bytes(plan.memory.available_bytes)), format_bytes(plan.memory_needs.program_bytes)));
  if (const std::string refused = memory_refusal(plan.memory_needs, plan.memory); !refused.empty())
    plan.notes.push_back("a run would be refused now: " + refused);
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

std::string refusal(const RunPlan& plan, const Budgets& budgets) {
  std::string text = "the run does not fit its memory budgets; nothing was started\n";
  text += fmt::format("  {:8} {:>12} {:>12} {:>12}\n", "tier", "needed", "budget", "missing");
  for (const TierUse& use : plan.tiers) {
    text += fmt::format("  {:8} {:>12} {:>12} {:>12}\n", use.tier, format_bytes(use.needed_bytes),
                        format_bytes(use.budget_bytes),
                        use.fits() ? "-" : format_bytes(use.missing_bytes()));
    if (use.fits()) continue;
    for (const auto& directory : use.directories)
      text += fmt::format("    {:24} {:>12} {:>12} {:>12}\n", directory.path.string(), format_bytes(directory.needed_bytes),
                          format_bytes(directory.capacity_bytes),
                          directory.missing_bytes() == 0 ? "-" : format_bytes(directory.missing_bytes()));
    for (const TierUse::Part& part : use.parts)
      text += fmt::format("    {:24} {:>12}\n", part.purpose, format_bytes(part.bytes));
  }
  if (const uint64_t missing = missing_together(plan.tiers, budgets); missing > 0)
    text += fmt::format("  {:8} {:>12} {:>12} {:>12}   device and host together, of the {} that this machine can give\n", "memory",
                        format_bytes(plan.tiers[0].needed_bytes + plan.tiers[1].needed_bytes), format_bytes(*budgets.together_bytes),
                        format_bytes(missing), format_bytes(plan.memory.available_bytes));
  text.pop_back();
  return text;
}

std::string remedy(const RunPlan& plan, const Budgets& budgets) {
  std::string text;
  const auto add = [&](const char* advice) { text += (text.empty() ? "" : "; ") + std::string(advice); };
  if (!plan.tiers[0].fits())
    add("raise device.memory, lower batch.micro_batch_size, batch.gradient_accumulation_steps or data.sequence_length, set "
        "placement.activations to recompute, schedule.prefetch to 0, or fewer device.threads (each has a workspace)");
  if (!plan.tiers[1].fits()) add("raise tiers.host.memory, lower schedule.tile, or place state on nvme");
  if (!plan.tiers[2].fits())
    add(plan.config.tiers.nvme.empty() ? "name a directory in tiers.nvme" : "raise the capacity in tiers.nvme");
  if (plan.tiers[2].fits() && missing_together(plan.tiers, budgets) > 0)
    add(plan.config.tiers.nvme.empty() ? "name a directory in tiers.nvme to place state there, free memory, lower "
                                         "batch.micro_batch_size, or raise the limit of the container"
                                       : "free memory, lower batch.micro_batch_size or schedule.tile, or raise the limit of the container");
  return text;
}

}  // namespace

uint64_t TierUse::missing_bytes() const {
  if (directories.empty()) return needed_bytes <= budget_bytes ? 0 : needed_bytes - budget_bytes;
  uint64_t missing = 0;
  for (const auto& directory : directories) missing += directory.missing_bytes();
  return missing;
}

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
  options.memory_bytes = config.device.memory_bytes.value_or(uint64_t{1} << 60);  // left open, the plan's is the limit
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

RunPlan make_run_plan(const Config& config, const ModelDescription& model, const gpu::Engine& engine, const MemoryInfo& memory,
                      const PlanConstraints& constraints) {
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
  check_plan_bounds(config, model, shape.layout);
  if (!config.schedule.tile_bytes)
    plan.config.schedule.tile_bytes = constraints.tile_elements > 0 ? constraints.tile_elements * shape.format.state_bytes()
                                                                    : automatic_tile_bytes(shape.layout, shape.format);
  const uint64_t tile_bytes = *plan.config.schedule.tile_bytes;
  shape.tile_elements = tile_elements(tile_bytes, shape.format);
  plan.memory = memory;
  plan.memory_needs.program_bytes = program_memory_bytes(estimated_operations(config, shape.layout, shape.format, tile_bytes));
  const uint64_t automatic_bytes = automatic_memory_bytes(memory, plan.memory_needs.program_bytes);
  const Budgets budgets(config, automatic_bytes);
  shape.poison = config.debug.poison;
  const bool forward_only = shape.forward_only = constraints.forward_only;
  if (config.optimizer.decay == DecayTargets::matrices) shape.undecayed = vectors_of(shape.layout);

  Placement base;
  base.accumulation = config.schedule.accumulation;
  base.lazy_update = config.schedule.update != UpdateMode::after_backward;
  base.prefetch = std::min<int64_t>(config.schedule.prefetch.value_or(kDefaultPrefetch), model.layers - 1);

  // Every combination that the configuration allows; the fastest in the simulator that fits wins, the first of equals.
  std::vector<bool> recomputes;
  if (config.placement.activations != ActivationPolicy::recompute && !forward_only) recomputes.push_back(false);
  if (config.placement.activations != ActivationPolicy::device || forward_only) recomputes.push_back(true);  // one buffer for all blocks
  const bool has_nvme = !config.tiers.nvme.empty();
  std::optional<Tier> optimizer_choice = config.placement.optimizer;
  if (!optimizer_choice && has_nvme && constraints.state_in_store) optimizer_choice = Tier::nvme;
  const RunShape coarse = simulated_shape(shape);
  double best_seconds = std::numeric_limits<double>::infinity();
  uint64_t least_missing = std::numeric_limits<uint64_t>::max();
  std::optional<Placement> best, closest;
  for (bool recompute : recomputes)
    for (Tier optimizer : forward_only ? std::vector{Tier::device} : allowed(optimizer_choice, has_nvme))
      for (Tier parameters : allowed(config.placement.parameters, has_nvme))
        for (Tier gradients : forward_only ? std::vector{Tier::device} : allowed(config.placement.gradients, has_nvme)) {
          plan.placement = base;
          for (const UnitLayout& unit : shape.layout.units)
            plan.placement.units.push_back({.parameters = parameters, .gradients = gradients, .optimizer = optimizer,
                                            .recompute = recompute && unit.kind == UnitKind::block});
          plan.steps = compile_memory(shape, plan.placement);
          plan.tiers = tier_uses(plan, budgets);
          const uint64_t missing = missing_bytes(plan, budgets);
          if (missing > 0) {
            if (missing < least_missing) closest = plan.placement;
            least_missing = std::min(missing, least_missing);
            continue;
          }
          const double seconds = predicted_step_seconds(coarse, plan.placement);
          if (seconds >= best_seconds) continue;
          best_seconds = seconds;
          best = plan.placement;
        }
  STRATA_CHECK(best || closest, "no placement was tried");
  plan.placement = best ? *best : *closest;
  plan.steps = best ? compile_step_plan(shape, plan.placement) : compile_memory(shape, plan.placement);
  plan.tiers = tier_uses(plan, budgets);
  if (!best) throw Error(ErrorCode::resource_exhausted, refusal(plan, budgets), {}, remedy(plan, budgets));
  fill_in_budgets(plan.config, plan.tiers, automatic_bytes);
  plan.tiers[0].budget_bytes = *plan.config.device.memory_bytes;
  plan.tiers[1].budget_bytes = *plan.config.tiers.host_memory_bytes;
  plan.memory_needs.device_bytes = plan.tiers[0].needed_bytes;
  plan.memory_needs.host_bytes = plan.tiers[1].needed_bytes;
  add_memory_notes(plan, config, automatic_bytes);
  if (!config.schedule.tile_bytes && constraints.tile_elements == 0 && tile_bytes > kTileBytesOfMostModels)
    plan.notes.push_back(fmt::format("schedule.tile is auto: {}, for a model of this size", format_bytes(tile_bytes)));
  if (config.schedule.prefetch && plan.placement.prefetch != *config.schedule.prefetch)
    plan.notes.push_back(fmt::format("schedule.prefetch is {}: the model has {} blocks", plan.placement.prefetch,
                                     model.layers));
  return plan;
}

}  // namespace strata::scheduler
