// A drive with a volatile write cache whose power can be cut: what was not synced may be lost, in part and in any order.
#pragma once

#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "tiers/io_engine.hpp"

namespace strata::tiers::testing {

/// Shared by the engines of a store. Reads see what was written; after the cut every request fails with ENODEV.
class SimulatedDrive {
 public:
  /// The power is cut when the request number `requests_until_cut` (from 0) comes in; that request does not happen.
  SimulatedDrive(uint64_t requests_until_cut, uint64_t seed) : left_(requests_until_cut), generator_(seed) {}

  IoEngineFactory factory();
  bool cut() const {
    std::lock_guard lock(mutex_);
    return cut_;
  }
  uint64_t requests() const {
    std::lock_guard lock(mutex_);
    return requests_;
  }
  /// At the cut the files get what a power cut may leave: of the writes that no sync covered, any subset, each whole, torn between
  /// sectors, or with any of its sectors.
  int64_t perform(const IoRequest& request, int file);

 private:
  struct Write {
    int file;
    uint64_t offset;
    std::vector<std::byte> before, after;
  };
  void lose_unsynced_writes();

  mutable std::mutex mutex_;
  uint64_t left_;
  uint64_t requests_ = 0;
  bool cut_ = false;
  std::mt19937_64 generator_;
  std::vector<Write> unsynced_;
};

}  // namespace strata::tiers::testing
