// How long nothing has moved: deadlines count from the last sign of life, not from the moment that something was asked for.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

namespace strata {

/// To be looked at every now and then by whoever waits. Time in which this process itself did not run (it was stopped, or the machine
/// slept) does not count: one look adds at most twice the `tick` that lies between two.
class StallTimer {
 public:
  using Clock = std::chrono::steady_clock;
  explicit StallTimer(std::chrono::milliseconds tick) : longest_look_(2 * tick) {}

  /// `progress` is any number that changes when something has moved; `working` says that something is at work right now, which is slow
  /// perhaps, but not stuck. Returns the time without either.
  Clock::duration look(uint64_t progress, bool working, Clock::time_point now = Clock::now()) {
    if (progress_ != progress || working) still_ = Clock::duration::zero();
    else still_ += std::min<Clock::duration>(now - last_look_, longest_look_);
    progress_ = progress;
    last_look_ = now;
    return still_;
  }

 private:
  Clock::duration longest_look_;
  std::optional<uint64_t> progress_;
  Clock::time_point last_look_;
  Clock::duration still_{};
};

}  // namespace strata
