// The memory of a host device: huge-page mappings under a hard budget, optionally poisoned so that reads of stale memory show as NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "gpu/device.hpp"

namespace strata::gpu {

/// Thread-safe. Held by shared_ptr, because a buffer may outlive its device.
class HostMemory : public std::enable_shared_from_this<HostMemory> {
 public:
  HostMemory(uint64_t budget_bytes, bool poison) : budget_bytes_(budget_bytes), poison_(poison) {}
  ~HostMemory();

  DeviceBuffer allocate(uint64_t bytes);
  uint64_t allocated_bytes() const;
  /// Whether all of [data, data + bytes) lies inside one live allocation, or none of it inside any.
  enum class Place { inside, outside, across };
  Place place(const void* data, uint64_t bytes) const;

 private:
  struct Mapping {
    std::byte* data = nullptr;
    uint64_t bytes = 0;         // as asked for
    uint64_t mapped_bytes = 0;  // rounded up to whole huge pages
  };
  void release(std::byte* data) noexcept;
  void quarantine(Mapping mapping);

  const uint64_t budget_bytes_;
  const bool poison_;
  mutable std::mutex mutex_;
  uint64_t allocated_bytes_ = 0;
  std::map<const std::byte*, Mapping> live_;
  // With poison, returned memory stays mapped and full of NaN for as long as the quarantine has room, so that a late read gives NaN and not a crash.
  std::deque<Mapping> quarantine_;
  uint64_t quarantine_bytes_ = 0;
};

}  // namespace strata::gpu
