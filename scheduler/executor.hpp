// The executor: runs a step program on the real machine, every resource at once.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cpu_adam/adam.hpp"
#include "gpu/device.hpp"
#include "gpu/engine.hpp"
#include "scheduler/compiler.hpp"
#include "scheduler/resource_threads.hpp"
#include "scheduler/step_program.hpp"
#include "tiers/store.hpp"

namespace strata::scheduler {

/// What changes from step to step.
struct StepValues {
  AdamStep adam;                // of the gradients that the program applies
  float gradient_scale = 1.0f;  // loss scale / counting tokens of the step
  std::string commit_record;    // the trainer's state after the update that the program applies
};

/// When one operation ran, in seconds from the program's start.
struct OpInterval {
  uint32_t op = 0;
  double begin_seconds = 0, end_seconds = 0;
};

struct ProgramRun {
  double seconds = 0;
  std::array<double, kResourceCount> busy_seconds{};  // time with at least one operation under way
  std::array<uint64_t, kResourceCount> bytes{};
  std::vector<OpInterval> intervals;
};

/// Where the tiers' memory is. The store may be null where no location is in it.
struct TierMemory {
  std::byte* device = nullptr;
  std::byte* host = nullptr;
  tiers::NvmeStore* store = nullptr;
  /// Of the host memory, held by every transfer that is under way: what a drive moves after its deadline still finds its buffer.
  std::shared_ptr<const void> host_owner = nullptr;
};

struct ExecutorOptions {
  /// How long the whole run may show no sign of life: no operation ended, no byte moved by the store, and no thread computing. It never
  /// bounds an operation that runs. Requests to a drive have deadlines of their own, which are shorter.
  std::chrono::milliseconds deadline = std::chrono::minutes(30);
  /// Told, once a deadline, when nothing has ended for that long though something is computing. May be empty.
  std::function<void(const std::string&)> on_slow;
};

class Executor {
 public:
  /// Everything given must outlive the executor. Starts all threads that running programs takes. Throws resource_exhausted when the
  /// system refuses one.
  Executor(gpu::Device& device, gpu::Engine& engine, AdamUpdater& adam, const RunShape& shape, const MemoryMap& memory,
           TierMemory tiers, ExecutorOptions options = {});
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Runs the whole program and returns when its last operation is done. On an error, everything under way is waited for and the
  /// first error is thrown; durable state is then what it was before, unless the commit had been reached. When what is under way shows no
  /// life for the deadline, the process ends (core/last_resort.hpp): its memory can be neither used nor given back.
  ProgramRun run(const Program& program, const StepValues& values);

  /// Address of a device or host location.
  std::byte* address(LocationId id) const;
  /// Copies between host memory and a location of the device, blocking (set-up and checkpoints). Ends the process like run().
  void copy_blocking(void* destination, const void* source, uint64_t bytes, gpu::CopyDirection direction);

 private:
  class Run;
  gpu::Device& device_;
  gpu::Engine& engine_;
  AdamUpdater& adam_;
  const RunShape& shape_;
  const MemoryMap& memory_;
  TierMemory tiers_;
  ExecutorOptions options_;
  std::array<std::unique_ptr<gpu::Stream>, 3> streams_;  // compute, h2d, d2h
  std::vector<std::unique_ptr<gpu::Event>> events_;      // two per device operation; grown once, then reused
  std::unique_ptr<ResourceThreads> threads_;
};

}  // namespace strata::scheduler
