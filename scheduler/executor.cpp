#include "scheduler/executor.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>

#include "core/error.hpp"
#include "core/last_resort.hpp"
#include "core/stall_timer.hpp"
#include "gpu/row_kernels.hpp"

namespace strata::scheduler {

namespace {
using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

double in_seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

/// Length of the union of intervals.
double union_seconds(std::vector<std::pair<double, double>> intervals) {
  std::sort(intervals.begin(), intervals.end());
  double total = 0, end = -1;
  for (const auto& [from, to] : intervals) {
    total += std::max(0.0, to - std::max(from, end));
    end = std::max(end, to);
  }
  return total;
}

constexpr std::chrono::milliseconds kTick{200};  // between two looks at whether anything moves

enum State : uint8_t { kPending, kIssued, kDone };

/// What a run, its threads and its callbacks share. Each callback holds it: one that comes after the run has been given up finds it alive,
/// and with it the memory that was moved.
struct Progress {
  Progress(size_t operations, std::shared_ptr<const void> memory_owner)
      : begin(operations), end(operations), memory(std::move(memory_owner)), states(operations) {}

  void fail(std::exception_ptr failure) {
    const std::lock_guard lock(mutex);
    if (!error) error = std::move(failure);
    changed.notify_all();
  }
  void advance(uint32_t index, State state) {
    const std::lock_guard lock(mutex);
    states[index] = std::max(states[index], state);
    ++steps;
    changed.notify_all();
  }
  void finish(uint32_t index) {
    end[index] = seconds_between(start, Clock::now());
    advance(index, kDone);
  }
  void transfer_ended() {
    const std::lock_guard lock(mutex);
    --transfers_in_flight;
    ++steps;
    changed.notify_all();
  }

  const Clock::time_point start = Clock::now();
  std::vector<double> begin, end;  // written by one thread per operation, read after all are done
  const std::shared_ptr<const void> memory;
  std::atomic<int> computing{0};  // threads of the processor that are inside an operation
  std::mutex mutex;  // of what follows
  std::condition_variable changed;
  std::vector<State> states;
  uint64_t steps = 0;
  int transfers_in_flight = 0;
  std::exception_ptr error;
};
}  // namespace

/// One execution of one program: a thread per resource issues its operations in order, each when what it waits for is done.
class Executor::Run {
 public:
  Run(Executor& executor, const Program& program, const StepValues& values)
      : executor_(executor), program_(program), values_(values),
        progress_(std::make_shared<Progress>(program.ops.size(), executor.tiers_.host_owner)), timer_(kTick) {}

  ProgramRun execute() {
    executor_.threads_->begin([this](int resource) { issue_all(static_cast<Resource>(resource)); });
    watch([this] { return executor_.threads_->wait(kTick); });
    for (auto& stream : executor_.streams_) {
      try {
        executor_.device_.synchronize(*stream, executor_.options_.deadline);
      } catch (const Error& error) {
        if (error.code() == ErrorCode::timeout) end_process(first_error_or(error));
        progress_->fail(std::current_exception());
      } catch (...) {
        progress_->fail(std::current_exception());
      }
    }
    watch([this] {
      std::unique_lock lock(progress_->mutex);
      return progress_->changed.wait_for(lock, kTick, [this] { return progress_->transfers_in_flight == 0; });
    });
    // Nothing touches the buffers any more, whatever happened.
    if (progress_->error) std::rethrow_exception(progress_->error);
    return report();
  }

 private:
  void issue_all(Resource resource) noexcept {
    try {
      for (uint32_t index = 0; index < program_.ops.size(); ++index) {
        if (program_.ops[index].resource != resource) continue;
        if (is_device_stream(resource)) issue_to_stream(index);
        else issue_on_host(index);
      }
    } catch (...) {
      progress_->fail(std::current_exception());
    }
  }

  // Waiting -------------------------------------------------------------------------------------------------------

  /// Calls `ended`, which waits a tick, until it says true. When nothing moves for the deadline, the run fails, so that its threads give
  /// up; when they do not, even then, somebody holds them, and the process ends.
  template <typename Ended>
  void watch(const Ended& ended) {
    while (!ended()) {
      try {
        look();
      } catch (...) {  // no memory for a message; leaving here would pull the run from under its threads
        progress_->fail(std::current_exception());
      }
    }
  }

  void look() {
    const auto deadline = executor_.options_.deadline;
    const gpu::DeviceActivity device = executor_.device_.activity();
    const bool computing = device.working || progress_->computing > 0;
    const uint64_t moved = signs_of_life(device);
    const auto slow = slow_timer_.look(moved, false);
    if (slow >= deadline && computing) {
      slow_timer_ = StallTimer(kTick);
      if (executor_.options_.on_slow)
        executor_.options_.on_slow(fmt::format("nothing has ended for {:.3g} s, but the processor computes:{}", in_seconds(slow), unfinished()));
    }
    const auto still = timer_.look(moved, computing);
    if (still < deadline) return;
    const Error error(ErrorCode::timeout, fmt::format("nothing has moved for {:.3g} s:{}", in_seconds(still), unfinished()), {},
                      "look at the kernel's log (dmesg) for a device or a drive that hangs");
    if (given_up_) end_process(error);
    given_up_ = true;
    timer_ = StallTimer(kTick);
    progress_->fail(std::make_exception_ptr(error));
  }

  /// The error that says the most.
  Error first_error_or(const Error& otherwise) {
    const std::lock_guard lock(progress_->mutex);
    try {
      if (progress_->error) std::rethrow_exception(progress_->error);
    } catch (const Error& error) {
      return error;
    } catch (...) {
    }
    return otherwise;
  }

  uint64_t signs_of_life(const gpu::DeviceActivity& device) const {
    const tiers::NvmeStore* store = executor_.tiers_.store;
    const std::lock_guard lock(progress_->mutex);
    return device.operations_finished + progress_->steps + (store ? store->bytes_read() + store->bytes_written() : 0);
  }

  /// The first operation of each resource that has not ended: who waits for what.
  std::string unfinished() {
    std::string text;
    for (int resource = 0; resource < kResourceCount; ++resource)
      for (uint32_t index = 0; index < program_.ops.size(); ++index) {
        if (program_.ops[index].resource != static_cast<Resource>(resource) || ended(index)) continue;
        text += fmt::format("\n  - {} is at {}", to_string(static_cast<Resource>(resource)), describe(index));
        break;
      }
    return text;
  }

  bool ended(uint32_t index) {
    State state = kPending;
    {
      const std::lock_guard lock(progress_->mutex);
      state = progress_->states[index];
    }
    if (state != kIssued || !is_device_stream(program_.ops[index].resource)) return state == kDone;
    try {
      return end_event(index).ready();
    } catch (...) {
      return true;  // with an error, which whoever waits for it throws
    }
  }

  std::string describe(uint32_t index) const {
    const Op& op = program_.ops[index];
    std::string text = fmt::format("{} #{} ({}", program_.name, index, to_string(op.kind));
    if (op.unit >= 0) text += ", " + executor_.shape_.layout.units[op.unit].name;
    if (op.tile >= 0) text += fmt::format(", tile {}", op.tile);
    if (op.micro_batch >= 0) text += fmt::format(", micro-batch {}", op.micro_batch);
    return text + ")";
  }

  /// Blocks until `index` has reached `wanted`; gives up when the run has failed.
  void await(uint32_t index, State wanted, uint32_t waiter) {
    std::unique_lock lock(progress_->mutex);
    while (progress_->states[index] < wanted) {
      if (progress_->error) throw Error(ErrorCode::cancelled, "given up after an earlier error", describe(waiter));
      progress_->changed.wait_for(lock, kTick);
      if (progress_->states[index] >= wanted) return;
      if (progress_->states[index] == kIssued && is_device_stream(program_.ops[index].resource)) {
        lock.unlock();
        end_event(index).ready();  // throws what went wrong in the stream
        lock.lock();
      }
    }
  }

  // Device streams ------------------------------------------------------------------------------------------------

  gpu::Event& begin_event(uint32_t index) { return *executor_.events_[2 * index]; }
  gpu::Event& end_event(uint32_t index) { return *executor_.events_[2 * index + 1]; }

  void issue_to_stream(uint32_t index) {
    const Op& op = program_.ops[index];
    gpu::Device& device = executor_.device_;
    gpu::Stream& stream = *executor_.streams_[static_cast<int>(op.resource)];
    for (uint32_t wait : op.waits) {
      if (is_device_stream(program_.ops[wait].resource)) {
        await(wait, kIssued, index);
        device.wait(stream, end_event(wait));
      } else {
        await(wait, kDone, index);
      }
    }
    device.record(stream, begin_event(index));
    enqueue(stream, op);
    device.record(stream, end_event(index));
    if (op.signals_host) device.call_host(stream, [progress = progress_, index] { progress->advance(index, kDone); });
    progress_->advance(index, kIssued);
  }

  template <typename T = void>
  T* at(const Op& op, int argument) const {
    const LocationId id = op.arguments[argument];
    return id == kNoLocation ? nullptr : reinterpret_cast<T*>(executor_.address(id));
  }

  void enqueue(gpu::Stream& stream, const Op& op) {
    gpu::Device& device = executor_.device_;
    gpu::Engine& engine = executor_.engine_;
    switch (op.kind) {
      case OpKind::copy_h2d:
        device.copy(stream, at(op, 1), at(op, 0), op.bytes, gpu::CopyDirection::host_to_device);
        return;
      case OpKind::copy_d2h:
        device.copy(stream, at(op, 1), at(op, 0), op.bytes, gpu::CopyDirection::device_to_host);
        return;
      case OpKind::prepare:
        engine.prepare(stream, op.unit, op.pass, at(op, 0), at(op, 1), at(op, 2));
        return;
      case OpKind::embedding_forward:
        engine.embedding_forward(stream, at(op, 0), at<int32_t>(op, 1), at(op, 2));
        return;
      case OpKind::block_forward:
      case OpKind::block_recompute:
        engine.block_forward(stream, op.unit, at(op, 0), at(op, 1), at(op, 2), at(op, 3), at(op, 4), at(op, 5));
        return;
      case OpKind::block_backward:
        engine.block_backward(stream, op.unit, at(op, 0), at(op, 1), at(op, 2), at(op, 3), at(op, 4),
                              at<float>(op, 5), op.accumulate, at(op, 6));
        return;
      case OpKind::head_loss: engine.head_loss(stream, head_buffers(op), loss(op)); return;
      case OpKind::head_loss_backward:
        engine.head_loss_backward(stream, head_buffers(op), values_.gradient_scale, loss(op), at(op, 7),
                                  at<float>(op, 8), at<float>(op, 9), op.accumulate);
        return;
      case OpKind::embedding_backward:
        engine.embedding_backward(stream, at<int32_t>(op, 0), at(op, 1), at<float>(op, 2), op.accumulate, at(op, 3));
        return;
      case OpKind::cast_gradients:
        device.rows().cast(stream, DType::f32, executor_.shape_.format.gradient, static_cast<int64_t>(op.elements),
                           at(op, 0), at(op, 1));
        return;
      case OpKind::sum_squares:
        device.rows().sum_squares(stream, executor_.shape_.format.gradient, static_cast<int64_t>(op.elements),
                                  at(op, 0), at<double>(op, 1) + op.first_block);
        return;
      case OpKind::adam_device: device.rows().adamw(stream, adam_tile(op)); return;
      case OpKind::poison_device:
        device.fill(stream, at(op, 0), 0xff, executor_.memory_[op.arguments[0]].bytes);
        return;
      default: break;
    }
    STRATA_CHECK(false, "{} is no operation of a stream", to_string(op.kind));
  }

  gpu::Engine::HeadBuffers head_buffers(const Op& op) const {
    return {.params = at(op, 0), .embedding_params = at(op, 1), .prepared = at(op, 2), .hidden = at(op, 3),
            .labels = at<int32_t>(op, 4), .workspace = at(op, 5)};
  }
  double* loss(const Op& op) const { return at<double>(op, 6) + op.micro_batch; }

  AdamTile adam_tile(const Op& op) const {
    const RunShape& shape = executor_.shape_;
    const StateFormat& format = shape.format;
    std::span<const Range> undecayed;
    if (!shape.undecayed.empty()) undecayed = shape.undecayed[op.unit];
    const Range shard = shard_range(shape.layout.units[op.unit].padded_elements, shape.rank, shape.world_size);
    return {.master_format = format.master, .parameter_dtype = format.compute, .gradient_dtype = format.gradient,
            .parameter = at(op, 0), .master = at(op, 1), .momentum = at<float>(op, 2), .variance = at<float>(op, 3),
            .gradient = at(op, 4), .elements = op.elements, .step = values_.adam, .undecayed = undecayed,
            .first_element = shard.first + static_cast<uint64_t>(op.tile) * shape.tile_elements};
  }

  // Host resources ------------------------------------------------------------------------------------------------

  void issue_on_host(uint32_t index) {
    const Op& op = program_.ops[index];
    for (uint32_t wait : op.waits) await(wait, kDone, index);
    progress_->begin[index] = seconds_between(progress_->start, Clock::now());
    switch (op.kind) {
      case OpKind::adam_cpu:
        compute([&] { executor_.adam_.update(adam_tile(op)); });
        break;
      case OpKind::poison_host:
        compute([&] { std::memset(at(op, 0), 0xff, executor_.memory_[op.arguments[0]].bytes); });
        break;
      case OpKind::commit: executor_.tiers_.store->commit(values_.commit_record); break;
      default: transfer(index); return;  // completes on a thread of the store's
    }
    progress_->finish(index);
  }

  template <typename Work>
  void compute(const Work& work) {
    struct Computing {
      explicit Computing(std::atomic<int>& count) : count_(count) { ++count_; }
      ~Computing() { --count_; }
      std::atomic<int>& count_;
    } const computing(progress_->computing);
    work();
  }

  void transfer(uint32_t index) {
    const Op& op = program_.ops[index];
    tiers::NvmeStore& store = *executor_.tiers_.store;
    const auto extent = static_cast<uint32_t>(executor_.memory_[op.arguments[0]].position);
    auto* buffer = at<std::byte>(op, 1);
    {
      const std::lock_guard lock(progress_->mutex);
      ++progress_->transfers_in_flight;
    }
    const auto done = [progress = progress_, index](std::exception_ptr error) {
      if (error) progress->fail(std::move(error));
      else progress->finish(index);
      progress->transfer_ended();
    };
    try {
      switch (op.kind) {
        case OpKind::read_state: store.read_state(extent, buffer, done); return;
        case OpKind::read_scratch: store.read_scratch(extent, buffer, done); return;
        case OpKind::write_state: store.write_state(extent, buffer, done); return;
        case OpKind::write_scratch: store.write_scratch(extent, buffer, done); return;
        default: break;
      }
      STRATA_CHECK(false, "{} is no transfer", to_string(op.kind));
    } catch (...) {
      progress_->transfer_ended();
      throw;
    }
  }

  // End -----------------------------------------------------------------------------------------------------------

  ProgramRun report() {
    ProgramRun run;
    run.seconds = seconds_between(progress_->start, Clock::now());
    std::array<std::vector<std::pair<double, double>>, kResourceCount> spans;
    const double origin = std::chrono::duration<double>(progress_->start.time_since_epoch()).count();
    for (uint32_t index = 0; index < program_.ops.size(); ++index) {
      const Op& op = program_.ops[index];
      if (is_device_stream(op.resource)) {
        progress_->begin[index] = begin_event(index).completed_at_seconds() - origin;
        progress_->end[index] = end_event(index).completed_at_seconds() - origin;
      }
      run.intervals.push_back({index, progress_->begin[index], progress_->end[index]});
      spans[static_cast<int>(op.resource)].emplace_back(progress_->begin[index], progress_->end[index]);
      run.bytes[static_cast<int>(op.resource)] += op.bytes;
    }
    for (int resource = 0; resource < kResourceCount; ++resource)
      run.busy_seconds[resource] = union_seconds(std::move(spans[resource]));
    return run;
  }

  Executor& executor_;
  const Program& program_;
  const StepValues& values_;
  const std::shared_ptr<Progress> progress_;
  StallTimer timer_;
  StallTimer slow_timer_{kTick};
  bool given_up_ = false;  // the run was told to fail because nothing moved
};

Executor::Executor(gpu::Device& device, gpu::Engine& engine, AdamUpdater& adam, const RunShape& shape,
                   const MemoryMap& memory, TierMemory tiers, ExecutorOptions options)
    : device_(device), engine_(engine), adam_(adam), shape_(shape), memory_(memory), tiers_(std::move(tiers)),
      options_(std::move(options)) {
  using Kind = gpu::Device::StreamKind;
  streams_[0] = device.create_stream(Kind::compute, "compute");
  streams_[1] = device.create_stream(Kind::copy, "h2d");
  streams_[2] = device.create_stream(Kind::copy, "d2h");
  std::vector<std::string> names;
  for (int resource = 0; resource < kResourceCount; ++resource)
    names.emplace_back(to_string(static_cast<Resource>(resource)));
  threads_ = std::make_unique<ResourceThreads>(names);
}

Executor::~Executor() = default;

ProgramRun Executor::run(const Program& program, const StepValues& values) {
  while (events_.size() < 2 * program.ops.size()) events_.push_back(device_.create_event());
  return Run(*this, program, values).execute();
}

std::byte* Executor::address(LocationId id) const {
  const Location& location = memory_[id];
  STRATA_CHECK(location.memory == Memory::device || location.memory == Memory::host, "location {} has no address", id);
  return (location.memory == Memory::device ? tiers_.device : tiers_.host) + location.position;
}

void Executor::copy_blocking(void* destination, const void* source, uint64_t bytes, gpu::CopyDirection direction) {
  gpu::Stream& stream = *streams_[direction == gpu::CopyDirection::host_to_device ? 1 : 2];
  device_.copy(stream, destination, source, bytes, direction);
  try {
    device_.synchronize(stream, options_.deadline);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::timeout) end_process(error);  // the copy may still come, and the buffers are the caller's
    throw;
  }
}

}  // namespace strata::scheduler
