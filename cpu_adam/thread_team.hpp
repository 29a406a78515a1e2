// A fixed number of threads, split over the NUMA nodes, that work through a range of elements in chunks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/topology.hpp"

namespace strata::cpu_adam {

enum class Pinning {
  node,       // a thread may run on any processor of its node; with one node nothing is bound
  processor,  // each thread has a processor of its own
};

/// Threads of our own rather than a task scheduler's: the work is one flat loop, the number of threads is exactly what was asked for
/// whatever else runs in the process, and a race detector sees every hand-over.
class ThreadTeam {
 public:
  /// `threads` >= 1 are shared out in proportion to the nodes' processors. The calling thread of for_chunks is one of them, so
  /// threads - 1 are started. A binding that the system refuses is left out: it is a matter of speed only. Throws
  /// Error{resource_exhausted} when a thread cannot be started.
  ThreadTeam(const std::vector<NumaNode>& nodes, int threads, Pinning pinning);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int threads() const;
  /// Threads of each node, 0 where a node got none.
  std::vector<int> threads_per_node() const;

  /// Calls work(first, count) on the threads, over [0, elements) in chunks that are multiples of 64 elements (but the last). Each
  /// node begins with a contiguous part of its own. Blocks until all are done; the caller's affinity mask is then what it was. The first
  /// exception of a chunk is thrown here; chunks that had not begun are left out. Thread-safe: one call at a time is served.
  void for_chunks(uint64_t elements, const std::function<void(uint64_t first, uint64_t count)>& work);

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

/// `threads` shared out in proportion to `weights` (largest remainders; ties to the front). At least one weight must be positive.
std::vector<int> share_out(int threads, const std::vector<int>& weights);

}  // namespace strata::cpu_adam
