#include "scheduler/resource_threads.hpp"

#include "core/error.hpp"
#include "core/thread.hpp"

namespace strata::scheduler {

ResourceThreads::ResourceThreads(const std::vector<std::string>& names) {
  threads_.reserve(names.size());
  try {
    for (const std::string& name : names)
      threads_.push_back(start_thread("issue " + name, [this, index = static_cast<int>(threads_.size())] { serve(index); }));
  } catch (...) {
    stop();
    throw;
  }
}

ResourceThreads::~ResourceThreads() { stop(); }

void ResourceThreads::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  begun_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ResourceThreads::begin(std::function<void(int)> body) {
  {
    const std::lock_guard lock(mutex_);
    STRATA_CHECK(running_ == 0, "{} threads are still at work", running_);
    body_ = std::move(body);
    running_ = threads_.size();
    ++round_;
  }
  begun_.notify_all();
}

bool ResourceThreads::wait(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return ended_.wait_for(lock, time, [this] { return running_ == 0; });
}

void ResourceThreads::serve(int index) {
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    begun_.wait(lock, [&] { return stopping_ || round_ != seen; });
    if (round_ == seen) return;
    seen = round_;
    const auto& body = body_;  // not replaced before all have ended
    lock.unlock();
    body(index);
    lock.lock();
    if (--running_ == 0) ended_.notify_all();
  }
}

}  // namespace strata::scheduler
