// Transfers with a store that are waited for together, and the buffers that they move.
#pragma once

#include <memory>

#include "scheduler/aligned_bytes.hpp"
#include "tiers/store.hpp"

namespace strata::scheduler {

/// A buffer that a transfer owns together with its user: a drive that moves bytes after its deadline still finds it.
using SharedBytes = std::shared_ptr<std::byte[]>;
inline SharedBytes shared_bytes(uint64_t bytes) { return aligned_bytes(bytes); }

/// One thread waits; callbacks come from any.
class StoreTransfers {
 public:
  StoreTransfers();
  /// Waits for what is under way.
  ~StoreTransfers();
  StoreTransfers(const StoreTransfers&) = delete;
  StoreTransfers& operator=(const StoreTransfers&) = delete;

  /// The callback of one more transfer, which moves `buffer`. When the store throws instead of taking it, the transfer never was.
  tiers::IoCallback add(SharedBytes buffer);
  /// Blocks until all are done. Throws their first error.
  void finish();

 private:
  struct Shared;
  struct Ticket;
  std::shared_ptr<Shared> shared_;
};

}  // namespace strata::scheduler
