#include "core/thread.hpp"

#include <dirent.h>
#include <execinfo.h>
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <vector>

#include "core/config.hpp"
#include "core/error.hpp"
#include "core/topology.hpp"

namespace strata {
namespace {

/// Threads of this process that the system still counts; 0 where it does not tell.
int threads_of_this_process() {
  DIR* const tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return 0;
  int count = 0;
  while (const dirent* const entry = readdir(tasks)) count += entry->d_name[0] != '.';
  closedir(tasks);
  return count;
}

std::string refusal(const std::system_error& error) { return system_reason(error.code().value()) + "; " + thread_limits(); }

/// Threads that have been joined are counted by the system for a moment longer.
void wait_until_at_most(int threads) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  while (threads_of_this_process() > threads && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

std::thread start_thread(const std::string& purpose, std::function<void()> body, const std::string& remedy) {
  try {
    return std::thread([name = purpose.substr(0, 15), body = std::move(body)] {
      pthread_setname_np(pthread_self(), name.c_str());
      body();
    });
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::resource_exhausted, "cannot start a thread: " + refusal(error), purpose, remedy);
  }
}

void require_threads(int count, const std::string& purpose, const std::string& remedy) {
  struct Gate {
    std::mutex mutex;
    std::condition_variable opened;
    bool open = false;
  };
  const auto gate = std::make_shared<Gate>();
  const int before = threads_of_this_process();
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(std::max(count, 0)));
  const auto end_all = [&] {
    {
      const std::lock_guard lock(gate->mutex);
      gate->open = true;
    }
    gate->opened.notify_all();
    for (auto& thread : threads) thread.join();
    if (before > 0) wait_until_at_most(before);
  };
  try {
    for (int i = 0; i < count; ++i)
      threads.emplace_back([gate] {
        std::unique_lock lock(gate->mutex);
        gate->opened.wait(lock, [&] { return gate->open; });
      });
  } catch (const std::system_error& error) {
    const std::string reason = refusal(error);
    const size_t started = threads.size();
    end_all();
    throw Error(ErrorCode::resource_exhausted,
                fmt::format("{} threads are needed at once, and the system gives only {}: {}", count, started, reason), purpose, remedy);
  } catch (...) {
    end_all();
    throw;
  }
  end_all();
}

std::string thread_limits() {
  std::string limits;
  const auto add = [&](const std::string& text) { limits += (limits.empty() ? "" : ", ") + text; };
  rlimit limit{};
  if (getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    add(fmt::format("{} processes and threads of this user (ulimit -u)", limit.rlim_cur));
  if (const auto processes = process_count_limit()) add(fmt::format("{} in its control group (pids.max)", *processes));
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    add(fmt::format("{} of address space (ulimit -v)", format_bytes(limit.rlim_cur)));
  const int threads = threads_of_this_process();
  return fmt::format("this process has {} threads; limits: {}", threads > 0 ? std::to_string(threads) : "an unknown number of",
                     limits.empty() ? "none found" : limits);
}

void preload_thread_support() {
  // The C library unwinds the stack of a thread that ends inside a library (OpenMP's do) with libgcc_s, which it loads at that moment
  // and without which it aborts. Asking for a backtrace loads it the same way.
  void* frame = nullptr;
  backtrace(&frame, 1);
}

}  // namespace strata
