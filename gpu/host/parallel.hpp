// How the host kernels share work among the threads of the compute stream: contiguous ranges, fixed by the count of threads alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

namespace strata::gpu {

/// Calls body(context, thread) for thread = 0 ... threads - 1 at the same time, on the OpenMP team of the calling thread. Rethrows the
/// error of the lowest thread that has one. To be called by a stream's thread only: a team belongs to the thread that opens it.
void run_team(int threads, void (*body)(void* context, int thread), void* context);

/// The most threads that run_team may be given here.
int team_threads_max();

/// Cuts [0, count) into one contiguous range a thread, each a multiple of `grain` (but for the last), and calls body(begin, end) for every
/// range that is not empty. What body computes for one index may not depend on the range that it finds itself in; so results have the same
/// bits for every thread count.
template <typename Body>
void parallel_for(int64_t count, int64_t grain, const Body& body) {
  if (count <= 0) return;
  const int64_t grains = (count + grain - 1) / grain;
  const auto threads = static_cast<int>(std::min<int64_t>(grains, team_threads_max()));
  if (threads <= 1) return body(int64_t{0}, count);
  struct Context {
    const Body& body;
    int64_t count, grain, grains;
    int threads;
  } context{body, count, grain, grains, threads};
  run_team(
      threads,
      [](void* opaque, int thread) {
        const Context& mine = *static_cast<const Context*>(opaque);
        const int64_t begin = mine.grains * thread / mine.threads * mine.grain;
        const int64_t end = std::min(mine.count, mine.grains * (thread + 1) / mine.threads * mine.grain);
        if (begin < end) mine.body(begin, end);
      },
      &context);
}

}  // namespace strata::gpu
