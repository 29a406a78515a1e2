// Short-lived buffers fit for direct I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "core/error.hpp"

namespace strata::scheduler {

struct FreeMemory {
  void operator()(std::byte* data) const { std::free(data); }
};
using AlignedBytes = std::unique_ptr<std::byte[], FreeMemory>;

/// At least `bytes`, at least one block, aligned to and padded to 4096. Throws resource_exhausted.
inline AlignedBytes aligned_bytes(uint64_t bytes) {
  const uint64_t padded = (bytes + 4095) / 4096 * 4096 + (bytes == 0 ? 4096 : 0);
  auto* data = static_cast<std::byte*>(std::aligned_alloc(4096, padded));
  if (!data) throw Error(ErrorCode::resource_exhausted, fmt::format("no memory for a buffer of {} bytes", padded));
  return AlignedBytes(data);
}

}  // namespace strata::scheduler
