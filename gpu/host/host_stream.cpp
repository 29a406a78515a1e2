#include "gpu/host/host_stream.hpp"

#include <omp.h>
#include <sched.h>

#include <utility>

#include "core/thread.hpp"
#include "gpu/host/parallel.hpp"

namespace strata::gpu {
namespace {

double seconds(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

void pin_this_thread(int cpu) {
  cpu_set_t* const set = CPU_ALLOC(cpu + 1);
  if (set == nullptr) return;
  const size_t bytes = CPU_ALLOC_SIZE(cpu + 1);
  CPU_ZERO_S(bytes, set);
  CPU_SET_S(cpu, bytes, set);
  sched_setaffinity(0, bytes, set);  // a wish: when the processor has gone, the thread runs elsewhere
  CPU_FREE(set);
}

}  // namespace

void Completion::complete(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
    error_ = std::move(error);
    completed_at_ = std::chrono::steady_clock::now();
  }
  completed_.notify_all();
}

std::exception_ptr Completion::wait() const {
  std::unique_lock lock(mutex_);
  completed_.wait(lock, [&] { return done_; });
  return error_;
}

bool Completion::wait_until(std::chrono::steady_clock::time_point deadline) const {
  std::unique_lock lock(mutex_);
  return completed_.wait_until(lock, deadline, [&] { return done_; });
}

bool Completion::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

std::exception_ptr Completion::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

double Completion::completed_at_seconds() const {
  const std::lock_guard lock(mutex_);
  STRATA_CHECK(done_, "the event of stream '{}' is not complete", stream_name_);
  return seconds(completed_at_);
}

bool HostEvent::ready() const {
  const auto completion = latest();
  if (completion == nullptr) return true;
  if (!completion->done()) return false;
  if (const auto error = completion->error()) std::rethrow_exception(error);
  return true;
}

double HostEvent::completed_at_seconds() const {
  const auto completion = latest();
  return completion == nullptr ? seconds(created_at_) : completion->completed_at_seconds();
}

void HostEvent::set(std::shared_ptr<Completion> completion) {
  const std::lock_guard lock(mutex_);
  latest_ = std::move(completion);
}

std::shared_ptr<Completion> HostEvent::latest() const {
  const std::lock_guard lock(mutex_);
  return latest_;
}

HostStream::HostStream(HostStreamOptions options) : options_(std::move(options)), random_(options_.seed) {
  const auto started = std::make_shared<std::promise<void>>();
  auto ready = started->get_future();
  thread_ = start_thread(options_.name, [this, started] { serve(*started); });
  try {
    ready.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

HostStream::~HostStream() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void HostStream::enqueue(std::function<void()> work) { push({.work = std::move(work)}); }

std::shared_ptr<Completion> HostStream::enqueue_record() {
  auto completion = std::make_shared<Completion>(options_.name);
  push({.record = completion});
  return completion;
}

void HostStream::enqueue_wait(std::shared_ptr<Completion> completion) { push({.wait = std::move(completion)}); }

void HostStream::push(Operation operation) {
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(busy_, true)) ++options_.activity->working;
    queue_.push_back(std::move(operation));
  }
  changed_.notify_one();
}

void HostStream::prepare_thread() {
  // Said here, in the thread that opens the parallel regions, so that neither OMP_NUM_THREADS nor OMP_DYNAMIC has a say.
  omp_set_dynamic(0);
  omp_set_num_threads(options_.threads);
  // The OpenMP run-time starts its threads at the first parallel region, keeps them, and ends the process when it gets none.
  if (options_.threads > 1)
    require_threads(options_.threads - 1, "the compute threads of stream " + options_.name,
                    std::string("lower device.threads, or ") + kRaiseThreadLimit);
  if (options_.pin_to_cpus.empty()) return run_team(options_.threads, [](void*, int) {}, nullptr);
  const auto pin = [](void* cpus_given, int thread) {
    const auto& cpus = *static_cast<const std::vector<int>*>(cpus_given);
    pin_this_thread(cpus[static_cast<size_t>(thread) % cpus.size()]);
  };
  std::vector<int> cpus = options_.pin_to_cpus;
  run_team(options_.threads, pin, &cpus);
}

void HostStream::serve(std::promise<void>& started) noexcept {
  try {
    prepare_thread();
  } catch (...) {
    return started.set_exception(std::current_exception());
  }
  started.set_value();
  while (true) {
    Operation operation;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      operation = std::move(queue_.front());
      queue_.pop_front();
    }
    auto& activity = *options_.activity;
    delay();
    if (operation.wait != nullptr) --activity.working;  // a stream that waits for another is not a sign of life
    perform(operation);
    if (operation.wait != nullptr) ++activity.working;
    ++activity.finished;
    const std::lock_guard lock(mutex_);
    if (!queue_.empty()) continue;
    busy_ = false;
    --activity.working;
  }
}

void HostStream::delay() {
  if (options_.random_delay_us_max == 0) return;
  const auto microseconds = std::uniform_int_distribution<int64_t>(0, options_.random_delay_us_max)(random_);
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

void HostStream::perform(Operation& operation) {
  if (operation.record != nullptr) {
    operation.record->complete(error_);
  } else if (operation.wait != nullptr) {
    auto error = operation.wait->wait();
    if (error_ == nullptr) error_ = std::move(error);
  } else if (error_ == nullptr) {
    try {
      operation.work();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
}

}  // namespace strata::gpu
