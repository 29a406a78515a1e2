// The host tier's memory: one mapping of an exact size, on huge pages where allowed, touched, locked and registered once at start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gpu/device.hpp"

namespace strata::tiers {

/// Whether a property of memory is asked for. `attempt` goes on without it and says why; `require` throws.
enum class Wish { off, attempt, require };

struct SlabOptions {
  Wish huge_pages = Wish::attempt;    // scattered 4 KiB pages cost two thirds of a drive's direct I/O rate
  Wish lock = Wish::off;              // mlock; registration with a CUDA device locks anyway
  Wish registration = Wish::attempt;  // with the device, when one is given
  uint64_t registration_piece_bytes = 1ull << 30;  // drivers and io_uring refuse or misbehave above some size
  int threads = 0;                    // that touch the pages; 0: from the affinity mask
};

/// Memory that starts at a multiple of 2 MiB and holds zeros. Every page is there when the constructor returns, so nothing faults
/// later. Not movable: the device and the kernel hold its address.
class MemorySlab {
 public:
  static constexpr uint64_t kAlignBytes = 2ull << 20;

  /// `bytes` may be 0. The device, if given, outlives the slab. Blocks: about 0.1 s a GiB on huge pages, seconds on small ones.
  /// Throws resource_exhausted when the system has not that much or a required property is refused.
  explicit MemorySlab(uint64_t bytes, gpu::Device* device = nullptr, const SlabOptions& options = {});
  ~MemorySlab();
  MemorySlab(const MemorySlab&) = delete;
  MemorySlab& operator=(const MemorySlab&) = delete;

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  std::span<std::byte> span() const { return {data_, bytes_}; }

  /// How much of it lies on huge pages, as the kernel reports it just after the first touch.
  uint64_t huge_page_bytes() const { return huge_page_bytes_; }
  bool locked() const { return locked_; }
  bool registered() const { return registered_; }
  /// "12 GiB, 12 GiB of it on huge pages; not locked: ...; registered with the device in 12 pieces", a phrase for the log.
  std::string description() const;

 private:
  void populate(int threads);
  void lock_pages(Wish wish);
  void register_with_device(const SlabOptions& options);
  void release() noexcept;

  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
  uint64_t mapped_bytes_ = 0;
  gpu::Device* device_ = nullptr;
  std::vector<std::byte*> pieces_;  // registered with the device
  uint64_t huge_page_bytes_ = 0;
  bool locked_ = false;
  bool registered_ = false;
  std::vector<std::string> refusals_;
};

}  // namespace strata::tiers
