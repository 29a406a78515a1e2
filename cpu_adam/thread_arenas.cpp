#include "cpu_adam/thread_arenas.hpp"

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/task_arena.h>
#include <oneapi/tbb/task_group.h>
#include <oneapi/tbb/task_scheduler_observer.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <numeric>
#include <optional>

#include "core/error.hpp"

namespace strata::cpu_adam {
namespace {

constexpr uint64_t kChunkMultiple = 64;
// Large enough that restarting the streams costs nothing, small enough that threads of unequal speed end together.
constexpr uint64_t kChunkElements = 64 * 1024;
constexpr uint64_t kSmallestChunkElements = 4096;

uint64_t round_up(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/// An affinity mask of any size.
class ProcessorSet {
 public:
  explicit ProcessorSet(const std::vector<int>& processors)
      : words_(static_cast<size_t>(*std::max_element(processors.begin(), processors.end())) / (8 * sizeof(Word)) + 1) {
    for (const int processor : processors) CPU_SET_S(processor, bytes(), set());
  }
  size_t bytes() const { return words_.size() * sizeof(Word); }
  cpu_set_t* set() { return reinterpret_cast<cpu_set_t*>(words_.data()); }

 private:
  using Word = unsigned long;
  std::vector<Word> words_;
};

/// Binds the threads of an arena while they are in it. A binding that the system refuses is left out: it is a matter of speed only.
class Pinner : public tbb::task_scheduler_observer {
 public:
  Pinner(tbb::task_arena& arena, std::vector<int> processors, int slots, Pinning pinning)
      : tbb::task_scheduler_observer(arena), processors_(std::move(processors)), pinning_(pinning), previous_(slots) {
    observe(true);
  }
  ~Pinner() override { observe(false); }

  void on_scheduler_entry(bool) override {
    const int slot = tbb::this_task_arena::current_thread_index();
    if (slot < 0 || slot >= static_cast<int>(previous_.size())) return;
    try {
      previous_[slot] = usable_processors();
      if (pinning_ == Pinning::node)
        bind(processors_);
      else
        bind({processors_[slot % processors_.size()]});
    } catch (const std::exception&) {
      previous_[slot].clear();
    }
  }

  void on_scheduler_exit(bool) override {
    const int slot = tbb::this_task_arena::current_thread_index();
    if (slot < 0 || slot >= static_cast<int>(previous_.size()) || previous_[slot].empty()) return;
    try {
      bind(previous_[slot]);
    } catch (const std::exception&) {
      // Out of memory for a mask: the thread stays bound, which is slow but right.
    }
  }

 private:
  static void bind(const std::vector<int>& processors) {
    ProcessorSet set(processors);
    static_cast<void>(sched_setaffinity(0, set.bytes(), set.set()));
  }

  std::vector<int> processors_;
  Pinning pinning_;
  std::vector<std::vector<int>> previous_;  // of the thread in each slot of the arena
};

struct Arena {
  tbb::task_arena arena;
  std::optional<Pinner> pinner;
  int threads;

  Arena(const NumaNode& node, int thread_count, bool has_caller, std::optional<Pinning> pinning)
      : arena(thread_count, has_caller ? 1 : 0), threads(thread_count) {
    arena.initialize();
    // One slot more than threads: oneTBB lets a thread that waits for the arena into it.
    if (pinning) pinner.emplace(arena, node.processors, thread_count + 1, *pinning);
  }
};

/// One node's part of the elements while it is being worked on. Its tasks refer to it, so it waits for them on destruction.
class Share {
 public:
  Share(Arena& arena, uint64_t first, uint64_t end) : arena_(arena), end_(end), next_(first) {
    chunk_ = std::clamp(round_up((end - first) / arena.threads / 4, kChunkMultiple), kSmallestChunkElements, kChunkElements);
  }
  ~Share() { wait(); }

  /// Starts a task for each thread. Each takes chunks until none is left, so that it does not matter how many get to run.
  void start(const std::function<void(uint64_t, uint64_t)>& work) {
    arena_.arena.execute([&] {
      for (int thread = 0; thread < arena_.threads; ++thread) group_.run([this, &work] { take_chunks(work); });
    });
  }

  /// Lends the calling thread to the arena until the tasks are done.
  void wait() noexcept {
    arena_.arena.execute([this] { group_.wait(); });
  }

  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void take_chunks(const std::function<void(uint64_t, uint64_t)>& work) noexcept {
    try {
      for (;;) {
        const uint64_t begin = next_.fetch_add(chunk_, std::memory_order_acq_rel);
        if (begin >= end_) return;
        work(begin, std::min(chunk_, end_ - begin));
      }
    } catch (...) {
      if (!failed_.exchange(true)) error_ = std::current_exception();
      next_.store(end_, std::memory_order_release);
    }
  }

  Arena& arena_;
  uint64_t end_, chunk_;
  std::atomic<uint64_t> next_;
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
  tbb::task_group group_;
};

}  // namespace

struct ThreadArenas::Implementation {
  // oneTBB makes no more workers than the processors it found, unless it is told to.
  std::optional<tbb::global_control> more_workers;
  std::vector<int> threads_per_node;
  std::vector<std::unique_ptr<Arena>> arenas;
  int threads = 0;
};

ThreadArenas::ThreadArenas(const std::vector<NumaNode>& nodes, int threads, Pinning pinning)
    : implementation_(std::make_unique<Implementation>()) {
  STRATA_CHECK(threads >= 1 && !nodes.empty(), "{} threads on {} nodes", threads, nodes.size());
  auto& self = *implementation_;
  self.threads = threads;
  if (threads > tbb::info::default_concurrency())
    self.more_workers.emplace(tbb::global_control::max_allowed_parallelism, threads);

  std::vector<int> weights;
  for (const auto& node : nodes) weights.push_back(static_cast<int>(node.processors.size()));
  self.threads_per_node = share_out(threads, weights);
  // On one node the system spreads the threads itself; only a processor each, or several nodes, need a binding.
  const bool bind = nodes.size() > 1 || pinning == Pinning::processor;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (self.threads_per_node[i] == 0) continue;
    self.arenas.push_back(std::make_unique<Arena>(nodes[i], self.threads_per_node[i], self.arenas.empty(),
                                                  bind ? std::optional(pinning) : std::nullopt));
  }
}

ThreadArenas::~ThreadArenas() = default;

int ThreadArenas::threads() const { return implementation_->threads; }
std::vector<int> ThreadArenas::threads_per_node() const { return implementation_->threads_per_node; }

void ThreadArenas::for_chunks(uint64_t elements, const std::function<void(uint64_t, uint64_t)>& work) {
  auto& self = *implementation_;
  if (elements == 0) return;
  std::vector<std::unique_ptr<Share>> shares;
  uint64_t first = 0;
  int threads_so_far = 0;
  for (auto& arena : self.arenas) {
    threads_so_far += arena->threads;
    const uint64_t end = std::min(elements, round_up(elements * threads_so_far / self.threads, kChunkMultiple));
    shares.push_back(std::make_unique<Share>(*arena, first, end));
    first = end;
  }
  for (auto& share : shares) share->start(work);
  for (auto& share : shares) share->wait();
  for (auto& share : shares) share->rethrow();
}

std::vector<int> share_out(int threads, const std::vector<int>& weights) {
  const int64_t total = std::accumulate(weights.begin(), weights.end(), int64_t{0});
  STRATA_CHECK(total > 0 && threads >= 0, "{} threads over a total weight of {}", threads, total);
  std::vector<int> shares;
  std::vector<size_t> order;
  for (const int weight : weights) {
    shares.push_back(static_cast<int>(int64_t{threads} * weight / total));
    order.push_back(order.size());
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return int64_t{threads} * weights[a] % total > int64_t{threads} * weights[b] % total;
  });
  int left = threads - std::accumulate(shares.begin(), shares.end(), 0);
  for (size_t i = 0; left > 0; ++i, --left) ++shares[order[i]];
  return shares;
}

}  // namespace strata::cpu_adam
