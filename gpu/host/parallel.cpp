#include "gpu/host/parallel.hpp"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>

namespace strata::gpu {
namespace {

/// What the threads of a team share. ThreadSanitizer does not see libgomp's own synchronization, so the fork and the join are said
/// a second time with atomics, outside the one function that it is told not to look at.
struct Team {
  Team(void (*body_given)(void*, int), void* context_given) : body(body_given), context(context_given) {}

  void (*const body)(void*, int);
  void* const context;
  std::atomic<int> forked = 0;
  std::atomic<int> joined = 0;
  std::mutex mutex;
  int failed_thread = -1;
  std::exception_ptr error = nullptr;
};

[[gnu::noinline]] void run_member(Team* team, int thread) {
  team->forked.load(std::memory_order_acquire);
  try {
    team->body(team->context, thread);
  } catch (...) {
    const std::lock_guard lock(team->mutex);
    if (team->failed_thread < 0 || thread < team->failed_thread) {
      team->failed_thread = thread;
      team->error = std::current_exception();
    }
  }
  team->joined.fetch_add(1, std::memory_order_release);
}

/// Every region takes the whole team, though fewer members may have work: libgomp ends the threads that a smaller region leaves out, and
/// would have to start them again in the middle of a run.
[[gnu::noinline, gnu::no_sanitize("thread")]] void fork_and_join(Team* team, int threads) {
  const int whole_team = std::max(threads, omp_get_max_threads());
#pragma omp parallel num_threads(whole_team)
  for (int thread = omp_get_thread_num(); thread < threads; thread += omp_get_num_threads()) run_member(team, thread);
}

}  // namespace

int team_threads_max() { return omp_get_max_threads(); }

void run_team(int threads, void (*body)(void*, int), void* context) {
  Team team(body, context);
  team.forked.store(1, std::memory_order_release);
  fork_and_join(&team, threads);
  team.joined.load(std::memory_order_acquire);
  if (team.error != nullptr) std::rethrow_exception(team.error);
}

}  // namespace strata::gpu
