// A fixed number of threads, split over the NUMA nodes, that work through a range of elements in chunks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/topology.hpp"

namespace strata::cpu_adam {

enum class Pinning {
  node,       // a thread may run on any processor of its node
  processor,  // each thread has a processor of its own
};

/// A oneTBB arena per node. The calling thread is one of the threads while it waits; its affinity mask is restored before
/// for_chunks returns. Neither environment variables nor other users of oneTBB change the number of threads.
class ThreadArenas {
 public:
  /// `threads` >= 1 are shared out in proportion to the nodes' processors.
  ThreadArenas(const std::vector<NumaNode>& nodes, int threads, Pinning pinning);
  ~ThreadArenas();
  ThreadArenas(const ThreadArenas&) = delete;
  ThreadArenas& operator=(const ThreadArenas&) = delete;

  int threads() const;
  /// Threads of each node, 0 where a node got none.
  std::vector<int> threads_per_node() const;

  /// Calls work(first, count) on the threads, over [0, elements) in chunks that are multiples of 64 elements (but the last). Blocks
  /// until all are done. The first exception of a chunk is thrown here, after the chunks that had begun.
  void for_chunks(uint64_t elements, const std::function<void(uint64_t first, uint64_t count)>& work);

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

/// `threads` shared out in proportion to `weights` (largest remainders; ties to the front). At least one weight must be positive.
std::vector<int> share_out(int threads, const std::vector<int>& weights);

}  // namespace strata::cpu_adam
