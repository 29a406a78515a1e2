// An I/O engine around another that loses, cuts, delays and corrupts what it is told to: by the n-th request or by a seed.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <vector>

#include "tiers/io_engine.hpp"

namespace strata::tiers::testing {

enum class Effect {
  error,       // completes with -value and moves nothing
  short_by,    // moves and reports only the first `value` bytes
  delay,       // is given to the engine `value` ms late
  never,       // never completes, not even when cancelled; land_late() moves its bytes all the same
  late,        // completes only after it was cancelled, with what it should have moved
  flip,        // a read in which bit `value` of the buffer is inverted
  lost,        // a write that reports success and moves nothing
  misdirected  // goes to an offset `value` bytes further
};

/// Applies to the requests [nth, nth + times) among those that match, counted from 1.
struct Fault {
  Effect effect = Effect::error;
  int64_t value = 0;
  uint64_t nth = 1;
  uint64_t times = 1;
  std::optional<IoOperation> operation;
  std::optional<uint32_t> file;
};

/// For every request: what goes wrong with what probability. Failures that a transfer must survive are the caller's choice.
struct RandomFaults {
  uint64_t seed = 1;
  double short_transfer = 0, interrupted = 0, read_error = 0, delay = 0;
};

/// What happens to the requests of all engines that share it. Thread-safe; outlives them.
class FaultPlan {
 public:
  FaultPlan() = default;
  explicit FaultPlan(std::vector<Fault> faults) { set(std::move(faults)); }
  explicit FaultPlan(const RandomFaults& random) : random_(random), generator_(random.seed) {}

  /// Replaces the faults and starts to count afresh.
  void set(std::vector<Fault> faults);
  std::optional<Fault> decide(const IoRequest& request);

  /// What a drive may do after everybody has given up on it: the requests that never completed move their bytes now. To be called when
  /// the engines have gone; under a sanitizer it finds every buffer that was freed too soon. Returns the number of requests.
  size_t land_late();
  void remember_as_hanging(const IoRequest& request);

  uint64_t requests() const;        // seen so far
  uint64_t injected() const;        // of them, those that were hurt
  uint32_t longest_bytes() const;

 private:
  mutable std::mutex mutex_;
  std::vector<Fault> faults_;
  std::vector<uint64_t> counts_;
  std::vector<IoRequest> hanging_;
  std::optional<RandomFaults> random_;
  std::mt19937_64 generator_;
  uint64_t requests_ = 0, injected_ = 0;
  uint32_t longest_bytes_ = 0;
};

/// A factory for engines that `plan` hurts, around those of `inner`.
IoEngineFactory faulty(std::shared_ptr<FaultPlan> plan, IoEngineFactory inner = make_io_engine);

}  // namespace strata::tiers::testing
