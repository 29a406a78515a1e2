#include "cpu_adam/thread_team.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "core/error.hpp"
#include "core/thread.hpp"

namespace strata::cpu_adam {
namespace {

using Work = std::function<void(uint64_t first, uint64_t count)>;

constexpr uint64_t kChunkMultiple = 64;
// Large enough that restarting the streams costs nothing, small enough that threads of unequal speed end together.
constexpr uint64_t kChunkElements = 64 * 1024;
constexpr uint64_t kSmallestChunkElements = 4096;

uint64_t round_up(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/// Lets the calling thread run on these processors only, if the system agrees.
void bind_thread(const std::vector<int>& processors) {
  using Word = unsigned long;
  const int most = *std::max_element(processors.begin(), processors.end());
  std::vector<Word> words(static_cast<size_t>(most) / (8 * sizeof(Word)) + 1);
  const size_t bytes = words.size() * sizeof(Word);
  auto* const set = reinterpret_cast<cpu_set_t*>(words.data());
  for (const int processor : processors) CPU_SET_S(processor, bytes, set);
  static_cast<void>(sched_setaffinity(0, bytes, set));
}

/// Binds the calling thread while it lives. No processors: nothing is bound.
class Binding {
 public:
  explicit Binding(const std::vector<int>& processors) {
    if (processors.empty()) return;
    auto mask = affinity_mask();
    if (!mask) return;  // what cannot be read cannot be restored
    previous_ = std::move(*mask);
    bind_thread(processors);
  }
  ~Binding() {
    try {
      if (!previous_.empty()) bind_thread(previous_);
    } catch (const std::exception&) {
      // No memory for a mask: the thread stays bound, which is slow but right.
    }
  }
  Binding(const Binding&) = delete;
  Binding& operator=(const Binding&) = delete;

 private:
  std::vector<int> previous_;
};

/// One node's part of the elements. Its threads take chunks from it first, then help the others.
struct Part {
  uint64_t end = 0, chunk = 0;
  std::atomic<uint64_t> next{0};
};

struct Member {
  size_t node = 0;
  std::vector<int> processors;  // to be bound to; empty: not bound
};

}  // namespace

struct ThreadTeam::Implementation {
  std::vector<int> threads_per_node;
  std::vector<Member> members;  // the first is the caller
  std::vector<std::thread> workers;
  std::mutex callers;  // held for a whole call

  std::mutex mutex;  // guards what follows
  std::condition_variable begun, ended;
  uint64_t calls = 0;
  bool open = false;  // workers may still join the call. One that wakes up late is not waited for
  int working = 0;    // workers that did
  bool stopping = false;
  const Work* work = nullptr;
  std::exception_ptr error;

  std::vector<Part> parts;  // written between calls, when no worker looks

  ~Implementation() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    begun.notify_all();
    for (auto& worker : workers) worker.join();
  }

  void take_chunks(size_t node, const Work& chunk_work) noexcept {
    try {
      for (size_t i = 0; i < parts.size(); ++i) {
        Part& part = parts[(node + i) % parts.size()];
        for (;;) {
          const uint64_t first = part.next.fetch_add(part.chunk, std::memory_order_relaxed);
          if (first >= part.end) break;
          chunk_work(first, std::min(part.chunk, part.end - first));
        }
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      for (auto& part : parts) part.next.store(part.end, std::memory_order_relaxed);
    }
  }

  void run_worker(const Member& member) {
    try {
      if (!member.processors.empty()) bind_thread(member.processors);
    } catch (const std::exception&) {
      // Unbound is slower, not wrong.
    }
    uint64_t seen = 0;
    std::unique_lock lock(mutex);
    for (;;) {
      begun.wait(lock, [&] { return stopping || calls != seen; });
      if (stopping) return;
      seen = calls;
      if (!open) continue;
      ++working;
      const Work& current = *work;
      lock.unlock();
      take_chunks(member.node, current);
      lock.lock();
      if (--working == 0) ended.notify_one();
    }
  }
};

ThreadTeam::ThreadTeam(const std::vector<NumaNode>& nodes, int threads, Pinning pinning)
    : implementation_(std::make_unique<Implementation>()) {
  STRATA_CHECK(threads >= 1 && !nodes.empty(), "{} threads on {} nodes", threads, nodes.size());
  auto& self = *implementation_;
  std::vector<int> weights;
  for (const auto& node : nodes) weights.push_back(static_cast<int>(node.processors.size()));
  self.threads_per_node = share_out(threads, weights);
  self.parts = std::vector<Part>(nodes.size());
  for (size_t node = 0; node < nodes.size(); ++node)
    for (int i = 0; i < self.threads_per_node[node]; ++i) {
      const auto& processors = nodes[node].processors;
      Member member{node, {}};
      if (pinning == Pinning::processor)
        member.processors = {processors[static_cast<size_t>(i) % processors.size()]};
      else if (nodes.size() > 1)
        member.processors = processors;
      self.members.push_back(std::move(member));
    }
  self.workers.reserve(self.members.size() - 1);
  for (size_t i = 1; i < self.members.size(); ++i)
    self.workers.push_back(start_thread("update on the CPU", [&self, i] { self.run_worker(self.members[i]); },
                                        std::string("lower schedule.update_threads, or ") + kRaiseThreadLimit));
}

ThreadTeam::~ThreadTeam() = default;

int ThreadTeam::threads() const { return static_cast<int>(implementation_->members.size()); }
std::vector<int> ThreadTeam::threads_per_node() const { return implementation_->threads_per_node; }

void ThreadTeam::for_chunks(uint64_t elements, const Work& work) {
  if (elements == 0) return;
  auto& self = *implementation_;
  const std::lock_guard one_call(self.callers);

  const uint64_t threads = self.members.size();
  uint64_t first = 0, threads_so_far = 0;
  for (size_t node = 0; node < self.parts.size(); ++node) {
    const uint64_t here = static_cast<uint64_t>(self.threads_per_node[node]);
    threads_so_far += here;
    Part& part = self.parts[node];
    part.end = std::min(elements, round_up(elements * threads_so_far / threads, kChunkMultiple));
    part.chunk = round_up((part.end - first) / std::max<uint64_t>(here, 1) / 4, kChunkMultiple);
    part.chunk = std::clamp(part.chunk, kSmallestChunkElements, kChunkElements);
    part.next.store(first, std::memory_order_relaxed);
    first = part.end;
  }

  const Member& caller = self.members.front();
  const Binding binding(caller.processors);
  {
    const std::lock_guard lock(self.mutex);
    self.work = &work;
    self.error = nullptr;
    self.open = true;
    ++self.calls;
  }
  self.begun.notify_all();
  self.take_chunks(caller.node, work);
  std::unique_lock lock(self.mutex);
  self.open = false;
  self.ended.wait(lock, [&] { return self.working == 0; });
  if (self.error) std::rethrow_exception(std::exchange(self.error, nullptr));
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
