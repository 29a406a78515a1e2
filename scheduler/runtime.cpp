#include "scheduler/runtime.hpp"

#include <sys/mman.h>
#include <sys/resource.h>

#include <utility>

#include "core/model.hpp"
#include "core/thread.hpp"
#include "core/topology.hpp"
#include "scheduler/plan_bounds.hpp"

namespace strata::scheduler {

namespace {

/// The engine's tables alone pass the device's budget: made without one, they let the plan say all that is missing.
void refuse_by_plan(const Config& config, const ModelDescription& model, const MemoryInfo& memory, const PlanConstraints& constraints) {
  Config unbounded = config;
  unbounded.device.memory_bytes = uint64_t{1} << 60;
  const auto device = create_device(unbounded);
  make_run_plan(config, model, *gpu::Engine::create(*device, model, make_layout(model), engine_options(config)), memory, constraints);
}

/// Refuses a run whose threads the system will not give, before anything is taken.
PlannedRun with_threads(PlannedRun planned) {
  const RunPlan& plan = planned.plan;
  const int compute = planned.device->info().compute_threads;
  const int update = plan.config.schedule.update_threads > 0 ? plan.config.schedule.update_threads : usable_processor_count();
  const int drives = plan.uses_store() ? 2 * static_cast<int>(plan.config.tiers.nvme.size()) : 0;  // one decides, one at least moves
  constexpr int kStreams = 3;
  const int wanted = kStreams + compute - 1 + update - 1 + kResourceCount + drives;
  require_threads(wanted,
                  fmt::format("threads of the run: {} to compute (device.threads), {} to update (schedule.update_threads), {} of its own",
                              compute, update, kStreams - 1 + kResourceCount + drives),
                  std::string("lower device.threads and schedule.update_threads, or ") + kRaiseThreadLimit);
  return planned;
}

/// Libraries take memory while they compute, and some do not look whether they got it.
void require_address_space() {
  constexpr uint64_t kWorkingBytes = 256ull << 20;
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  void* const reserved = mmap(nullptr, kWorkingBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED)
    throw Error(ErrorCode::resource_exhausted,
                fmt::format("the limit on address space, {}, leaves less than {} to work with", format_bytes(limit.rlim_cur),
                            format_bytes(kWorkingBytes)),
                "ulimit -v", "raise it, or lower device.memory, tiers.host.memory, device.threads and schedule.update_threads");
  munmap(reserved, kWorkingBytes);
}

PlannedRun plan(const Config& config, const ModelDescription& model, const MemoryInfo& memory, const PlanConstraints& constraints) {
  check_plan_bounds(config, model, make_layout(model));  // before anything of such a size is made
  PlannedRun planned;
  planned.device = create_device(config);
  try {
    planned.engine = gpu::Engine::create(*planned.device, model, make_layout(model), engine_options(config));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::resource_exhausted) throw;
    refuse_by_plan(config, model, memory, constraints);
    throw;
  }
  planned.plan = make_run_plan(config, model, *planned.engine, memory, constraints);
  return planned;
}

}  // namespace

PlannedRun plan_run(const Config& config, const PlanRunOptions& options) {
  const std::filesystem::path& directory = options.model_directory.empty() ? config.model.path : options.model_directory;
  PlannedRun planned = plan(config, read_model_description(directory), memory_info(options.system_root), options.constraints);
  planned.plan.model_directory = directory;
  return planned;
}

PlannedRun plan_evaluation(const Config& config, const ModelDescription& model) {
  return plan(config, model, memory_info(), {.forward_only = true});
}

Runtime::Runtime(PlannedRun planned, StoreMode store_mode, std::function<void(const std::string&)> on_slow)
    : planned_(with_threads(std::move(planned))), adam_(planned_.plan.config.schedule.update_threads) {
  const RunPlan& plan = planned_.plan;
  require_memory(plan.memory_needs, plan.memory);
  const auto take_memory = [&] {
    device_memory_ = planned_.device->allocate(plan.steps.memory.slab_bytes(Memory::device));
    host_memory_ = std::make_shared<tiers::MemorySlab>(plan.steps.memory.slab_bytes(Memory::host), planned_.device.get());
    return std::vector{host_memory_->span()};
  };
  if (plan.uses_store()) {
    // A directory that is taken or too small is found before memory is touched.
    tiers::StoreOptions options = plan.store_options();
    options.regions = take_memory;
    store_ = store_mode == StoreMode::create ? tiers::NvmeStore::create(options) : tiers::NvmeStore::open(options);
  } else {
    take_memory();
  }
  executor_ = std::make_unique<Executor>(
      *planned_.device, *planned_.engine, adam_, plan.shape, plan.steps.memory,
      TierMemory{.device = device_memory_.data(), .host = host_memory_->data(), .store = store_.get(), .host_owner = host_memory_},
      ExecutorOptions{.on_slow = std::move(on_slow)});
  state_ = std::make_unique<TrainingState>(plan.shape, plan.steps, *executor_, store_.get());
  require_address_space();
}

std::vector<std::string> Runtime::description() const {
  const gpu::DeviceInfo& info = planned_.device->info();
  std::vector<std::string> lines;
  lines.push_back(fmt::format("device      {} ({}), {} compute threads, {} taken", info.kind, info.name,
                              info.compute_threads, format_bytes(planned_.device->allocated_bytes())));
  lines.push_back(fmt::format("host        {} taken; {}", format_bytes(host_memory_->bytes()), host_memory_->description()));
  lines.push_back(fmt::format("update      {} threads, {}", adam_.threads(), AdamUpdater::instruction_set()));
  if (store_) lines.push_back(fmt::format("store       {}", store_->engine_description()));
  return lines;
}

}  // namespace strata::scheduler
