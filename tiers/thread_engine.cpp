// The engine that works everywhere: blocking pread, pwrite and fdatasync on a few threads.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "core/thread.hpp"
#include "tiers/file.hpp"
#include "tiers/io_engine.hpp"

namespace strata::tiers {
namespace {

constexpr uint32_t kThreadsMax = 8;
constexpr std::chrono::seconds kStopGrace{2};

/// What the engine and its threads share. A thread that is stuck in the kernel keeps it alive after the engine has gone.
struct Shared {
  std::mutex mutex;
  std::condition_variable work, finished;
  std::deque<IoRequest> requests;
  std::deque<IoCompletion> completions;
  std::vector<FileDescriptor> files;  // of its own: the number of a closed file may soon be another file's
  uint32_t running = 0;
  bool woken = false;
  bool stop = false;
};

int64_t perform(const IoRequest& request, int file) {
  ssize_t result = 0;
  switch (request.operation) {
    case IoOperation::read:
      result = pread(file, request.buffer, request.length_bytes, static_cast<off_t>(request.offset_bytes));
      break;
    case IoOperation::write:
      result = pwrite(file, request.buffer, request.length_bytes, static_cast<off_t>(request.offset_bytes));
      break;
    case IoOperation::sync:
      result = fdatasync(file);
      break;
  }
  return result < 0 ? -errno : result;
}

void serve(const std::shared_ptr<Shared>& shared) noexcept {
  std::unique_lock lock(shared->mutex);
  while (true) {
    shared->work.wait(lock, [&] { return shared->stop || !shared->requests.empty(); });
    if (shared->stop) break;
    const IoRequest request = shared->requests.front();
    shared->requests.pop_front();
    lock.unlock();
    const int64_t result = perform(request, shared->files[request.file].get());
    lock.lock();
    shared->completions.push_back({request.tag, result});
    shared->finished.notify_all();
  }
  --shared->running;
  shared->finished.notify_all();
}

class ThreadEngine final : public IoEngine {
 public:
  ThreadEngine(const IoEngineConfig& config, std::string reason)
      : shared_(std::make_shared<Shared>()), reason_(std::move(reason)) {
    for (const int file : config.files) {
      shared_->files.emplace_back(fcntl(file, F_DUPFD_CLOEXEC, 0));
      if (!shared_->files.back())
        throw Error(ErrorCode::resource_exhausted, "cannot open a file once more: " + system_reason(errno), "NVMe store",
                    "raise the limit on open files (ulimit -n)");
    }
    const uint32_t count = std::clamp(config.queue_depth, 1u, kThreadsMax);
    threads_.reserve(count);
    for (uint32_t i = 0; i < count; ++i) {
      try {
        threads_.push_back(start_thread("NVMe store I/O", [shared = shared_] { serve(shared); }));
      } catch (const Error&) {
        if (threads_.empty()) throw;
        break;  // fewer threads move the same bytes
      }
      std::lock_guard lock(shared_->mutex);
      ++shared_->running;
    }
  }

  ~ThreadEngine() override {
    std::unique_lock lock(shared_->mutex);
    shared_->stop = true;
    shared_->work.notify_all();
    const bool all_left = shared_->finished.wait_for(lock, kStopGrace, [&] { return shared_->running == 0; });
    lock.unlock();
    // A thread that the kernel holds for ever cannot be joined; it lives on with its share of the state.
    for (auto& thread : threads_) all_left ? thread.join() : thread.detach();
  }

  void submit(std::span<const IoRequest> requests) override {
    {
      std::lock_guard lock(shared_->mutex);
      shared_->requests.insert(shared_->requests.end(), requests.begin(), requests.end());
    }
    requests.size() == 1 ? shared_->work.notify_one() : shared_->work.notify_all();
  }

  size_t wait(std::span<IoCompletion> completions, std::chrono::microseconds timeout) override {
    std::unique_lock lock(shared_->mutex);
    if (timeout.count() > 0) {
      shared_->finished.wait_for(lock, timeout, [&] { return shared_->woken || !shared_->completions.empty(); });
    }
    shared_->woken = false;
    const size_t count = std::min(completions.size(), shared_->completions.size());
    for (size_t i = 0; i < count; ++i) {
      completions[i] = shared_->completions.front();
      shared_->completions.pop_front();
    }
    return count;
  }

  void wake() override {
    {
      std::lock_guard lock(shared_->mutex);
      shared_->woken = true;
    }
    shared_->finished.notify_all();
  }

  void cancel(uint64_t tag) override {
    // A request that no thread has begun can be withdrawn; one that is inside the kernel cannot.
    std::lock_guard lock(shared_->mutex);
    const auto found = std::find_if(shared_->requests.begin(), shared_->requests.end(),
                                    [&](const IoRequest& request) { return request.tag == tag; });
    if (found == shared_->requests.end()) return;
    shared_->requests.erase(found);
    shared_->completions.push_back({tag, -ECANCELED});
    shared_->finished.notify_all();
  }

  std::string describe() const override {
    return fmt::format("{} threads with pread and pwrite{}", threads_.size(), reason_.empty() ? "" : " (" + reason_ + ")");
  }

 private:
  std::shared_ptr<Shared> shared_;
  std::vector<std::thread> threads_;
  std::string reason_;
};

}  // namespace

std::unique_ptr<IoEngine> make_thread_engine(const IoEngineConfig& config, const std::string& reason) {
  return std::make_unique<ThreadEngine>(config, reason);
}

}  // namespace strata::tiers
