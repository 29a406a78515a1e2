// Streams and events of the host device: an in-order queue served by one thread, and points in it that others can wait for.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gpu/device.hpp"

namespace strata::gpu {

/// One record of an event: it completes once, with the error that its stream had by then, if any.
class Completion {
 public:
  explicit Completion(std::string stream_name) : stream_name_(std::move(stream_name)) {}

  void complete(std::exception_ptr error);
  /// Blocks. Returns the error.
  std::exception_ptr wait() const;
  /// False after the deadline.
  bool wait_until(std::chrono::steady_clock::time_point deadline) const;
  bool done() const;
  std::exception_ptr error() const;
  double completed_at_seconds() const;
  const std::string& stream_name() const { return stream_name_; }

 private:
  const std::string stream_name_;
  mutable std::mutex mutex_;
  mutable std::condition_variable completed_;
  bool done_ = false;
  std::exception_ptr error_;
  std::chrono::steady_clock::time_point completed_at_;
};

class HostEvent final : public Event {
 public:
  bool ready() const override;
  double completed_at_seconds() const override;

  void set(std::shared_ptr<Completion> completion);
  /// The latest record; null when there is none.
  std::shared_ptr<Completion> latest() const;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Completion> latest_;
  const std::chrono::steady_clock::time_point created_at_ = std::chrono::steady_clock::now();
};

/// What the streams of a device have done and are doing.
struct HostActivity {
  std::atomic<uint64_t> finished{0};
  std::atomic<int> working{0};  // streams that have work and are not waiting for an event
};

struct HostStreamOptions {
  std::string name;
  int threads = 1;               // of an OpenMP parallel region opened by the stream's work
  std::vector<int> pin_to_cpus;  // thread i of the team is bound to pin_to_cpus[i]; empty: not bound
  int64_t random_delay_us_max = 0;
  uint64_t seed = 1;
  std::shared_ptr<HostActivity> activity = std::make_shared<HostActivity>();  // shared by a device's streams
};

class HostStream final : public Stream {
 public:
  /// Returns when the stream's thread and its whole team run: nothing is started later. Throws resource_exhausted when the system
  /// refuses them.
  explicit HostStream(HostStreamOptions options);
  /// Drains the queue.
  ~HostStream() override;

  /// The work is skipped once the stream has an error. May be called from any thread.
  void enqueue(std::function<void()> work);
  std::shared_ptr<Completion> enqueue_record();
  void enqueue_wait(std::shared_ptr<Completion> completion);
  const std::string& name() const { return options_.name; }

 private:
  struct Operation {
    std::function<void()> work = {};                  // or
    std::shared_ptr<Completion> record = nullptr;  // or
    std::shared_ptr<Completion> wait = nullptr;
  };
  void push(Operation operation);
  void serve(std::promise<void>& started) noexcept;
  void prepare_thread();
  void delay();
  void perform(Operation& operation);

  const HostStreamOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> queue_;
  bool busy_ = false;  // has work
  bool stopping_ = false;
  std::exception_ptr error_;  // of the stream's thread alone
  std::mt19937_64 random_;    // likewise
  std::thread thread_;
};

}  // namespace strata::gpu
