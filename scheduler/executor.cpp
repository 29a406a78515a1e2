#include "scheduler/executor.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "core/error.hpp"
#include "gpu/row_kernels.hpp"

namespace strata::scheduler {

namespace {
using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

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
}  // namespace

/// One execution of one program: a thread per resource issues its operations in order, each when what it waits for is done.
class Executor::Run {
 public:
  Run(Executor& executor, const Program& program, const StepValues& values)
      : executor_(executor), program_(program), values_(values), states_(program.ops.size()),
        begin_(program.ops.size()), end_(program.ops.size()) {}

  ProgramRun execute() {
    start_ = Clock::now();
    {
      std::vector<std::jthread> threads;
      for (int resource = 0; resource < kResourceCount; ++resource)
        threads.emplace_back([this, resource] { issue_all(static_cast<Resource>(resource)); });
    }
    drain();
    if (error_) std::rethrow_exception(error_);
    return report();
  }

 private:
  enum State : uint8_t { kPending, kIssued, kDone };

  void issue_all(Resource resource) {
    try {
      for (uint32_t index = 0; index < program_.ops.size(); ++index) {
        if (program_.ops[index].resource != resource) continue;
        if (is_device_stream(resource)) issue_to_stream(index);
        else issue_on_host(index);
      }
    } catch (...) {
      fail(std::current_exception());
    }
  }

  void fail(std::exception_ptr error) {
    std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
    aborted_ = true;
    changed_.notify_all();
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
    const auto deadline = Clock::now() + executor_.deadline_;
    std::unique_lock lock(mutex_);
    while (states_[index] < wanted) {
      if (aborted_) throw Error(ErrorCode::cancelled, "given up after an earlier error", describe(waiter));
      changed_.wait_for(lock, std::chrono::milliseconds(200));
      if (states_[index] >= wanted) return;
      if (states_[index] == kIssued && is_device_stream(program_.ops[index].resource)) {
        lock.unlock();
        end_event(index).ready();  // throws what went wrong in the stream
        lock.lock();
      }
      if (Clock::now() > deadline)
        throw Error(ErrorCode::timeout, fmt::format("{} waited too long for {}", describe(waiter), describe(index)), {},
                    "look at the machine's load and the kernel's log for a device that hangs");
    }
  }

  void advance(uint32_t index, State state) {
    std::lock_guard lock(mutex_);
    states_[index] = std::max(states_[index], state);
    changed_.notify_all();
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
    if (op.signals_host) device.call_host(stream, [this, index] { advance(index, kDone); });
    advance(index, kIssued);
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
    const StateFormat& format = executor_.shape_.format;
    return {.master_format = format.master, .parameter_dtype = format.compute, .gradient_dtype = format.gradient,
            .parameter = at(op, 0), .master = at(op, 1), .momentum = at<float>(op, 2), .variance = at<float>(op, 3),
            .gradient = at(op, 4), .elements = op.elements, .step = values_.adam};
  }

  // Host resources ------------------------------------------------------------------------------------------------

  void issue_on_host(uint32_t index) {
    const Op& op = program_.ops[index];
    for (uint32_t wait : op.waits) await(wait, kDone, index);
    begin_[index] = seconds_between(start_, Clock::now());
    switch (op.kind) {
      case OpKind::adam_cpu: executor_.adam_.update(adam_tile(op)); break;
      case OpKind::poison_host: std::memset(at(op, 0), 0xff, executor_.memory_[op.arguments[0]].bytes); break;
      case OpKind::commit: executor_.tiers_.store->commit(values_.commit_record); break;
      default: transfer(index); return;  // completes on a thread of the store's
    }
    finish(index);
  }

  void finish(uint32_t index) {
    end_[index] = seconds_between(start_, Clock::now());
    advance(index, kDone);
  }

  void transfer(uint32_t index) {
    const Op& op = program_.ops[index];
    tiers::NvmeStore& store = *executor_.tiers_.store;
    const auto extent = static_cast<uint32_t>(executor_.memory_[op.arguments[0]].position);
    auto* buffer = at<std::byte>(op, 1);
    {
      std::lock_guard lock(mutex_);
      ++transfers_in_flight_;
    }
    const auto done = [this, index](std::exception_ptr error) {
      if (error) fail(error);
      else finish(index);
      std::lock_guard lock(mutex_);
      --transfers_in_flight_;
      changed_.notify_all();
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
      std::lock_guard lock(mutex_);
      --transfers_in_flight_;
      throw;
    }
  }

  // End -----------------------------------------------------------------------------------------------------------

  /// Nothing may touch the buffers after this, whatever happened.
  void drain() {
    for (auto& stream : executor_.streams_) {
      try {
        executor_.device_.synchronize(*stream, executor_.deadline_);
      } catch (...) {
        fail(std::current_exception());
      }
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return transfers_in_flight_ == 0; });
  }

  ProgramRun report() {
    ProgramRun run;
    run.seconds = seconds_between(start_, Clock::now());
    std::array<std::vector<std::pair<double, double>>, kResourceCount> spans;
    const double origin = std::chrono::duration<double>(start_.time_since_epoch()).count();
    for (uint32_t index = 0; index < program_.ops.size(); ++index) {
      const Op& op = program_.ops[index];
      if (is_device_stream(op.resource)) {
        begin_[index] = begin_event(index).completed_at_seconds() - origin;
        end_[index] = end_event(index).completed_at_seconds() - origin;
      }
      run.intervals.push_back({index, begin_[index], end_[index]});
      spans[static_cast<int>(op.resource)].emplace_back(begin_[index], end_[index]);
      run.bytes[static_cast<int>(op.resource)] += op.bytes;
    }
    for (int resource = 0; resource < kResourceCount; ++resource)
      run.busy_seconds[resource] = union_seconds(std::move(spans[resource]));
    return run;
  }

  Executor& executor_;
  const Program& program_;
  const StepValues& values_;
  Clock::time_point start_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<State> states_;  // guarded by mutex_
  std::vector<double> begin_, end_;  // written by one thread per operation, read after all are done
  int transfers_in_flight_ = 0;
  bool aborted_ = false;
  std::exception_ptr error_;
};

Executor::Executor(gpu::Device& device, gpu::Engine& engine, AdamUpdater& adam, const RunShape& shape,
                   const MemoryMap& memory, TierMemory tiers, std::chrono::milliseconds deadline)
    : device_(device), engine_(engine), adam_(adam), shape_(shape), memory_(memory), tiers_(tiers),
      deadline_(deadline) {
  using Kind = gpu::Device::StreamKind;
  streams_[0] = device.create_stream(Kind::compute, "compute");
  streams_[1] = device.create_stream(Kind::copy, "h2d");
  streams_[2] = device.create_stream(Kind::copy, "d2h");
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
  device_.synchronize(stream, deadline_);
}

}  // namespace strata::scheduler
