// The executor's threads, one for each resource: made once, before training, and used by every program that runs.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace strata::scheduler {

/// One caller at a time.
class ResourceThreads {
 public:
  /// Starts a thread for each name. Throws resource_exhausted, with none left running, when the system refuses one.
  explicit ResourceThreads(const std::vector<std::string>& names);
  /// Waits for the bodies that run.
  ~ResourceThreads();
  ResourceThreads(const ResourceThreads&) = delete;
  ResourceThreads& operator=(const ResourceThreads&) = delete;

  /// Lets thread i call body(i), once. `body` must not throw. Every begin() is to be followed by wait() until that says true.
  void begin(std::function<void(int)> body);
  /// Whether all bodies have returned, after at most `time`.
  bool wait(std::chrono::milliseconds time);

 private:
  void serve(int index);
  void stop();

  std::mutex mutex_;  // of what follows
  std::condition_variable begun_, ended_;
  std::function<void(int)> body_;
  uint64_t round_ = 0;
  size_t running_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace strata::scheduler
