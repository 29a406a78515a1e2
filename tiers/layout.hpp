// Which directory and which bytes of its files every extent of the store takes.
#pragma once

#include <cstdint>
#include <vector>

#include "tiers/file.hpp"
#include "tiers/store.hpp"

namespace strata::tiers {

inline constexpr uint64_t kExtentBytesMax = uint64_t{1} << 50;

/// Extents start at multiples of kBlockBytes and not more: direct I/O asks for no more, chunk boundaries inside an extent are
/// multiples of it anyway, and a store of ten thousand tiny extents does not become a thousand times its size.
/// A state file holds all slots 0 and then all slots 1: extents that are written together, as nearly all are, lie side by side.
struct ExtentPlace {
  uint32_t directory = 0;
  uint64_t bytes = 0;  // exact
  uint64_t offset_bytes[2] = {0, 0};  // of each slot; scratch has the first alone
  uint64_t padded_bytes() const { return round_up(bytes, kBlockBytes); }
};

struct StoreLayout {
  std::vector<ExtentPlace> state, scratch;
  std::vector<uint64_t> state_file_bytes, scratch_file_bytes;  // per directory
  uint64_t commit_file_bytes = 0;                              // in the first directory
  uint64_t directory_bytes(size_t directory) const {
    return state_file_bytes[directory] + scratch_file_bytes[directory] + (directory == 0 ? commit_file_bytes : 0);
  }
  uint64_t bytes() const;
};

/// Deals the extents out one after another, each to the directory that is least filled for its weight and has room. The same
/// options give the same layout. Throws invalid_configuration (an extent of no bytes, no directory, a weight that is not positive) or
/// resource_exhausted with what each directory was asked for.
StoreLayout lay_out(const StoreOptions& options);
/// The same for a store whose state is already placed: only scratch is dealt out.
StoreLayout lay_out(const StoreOptions& options, std::vector<ExtentPlace> state, std::vector<uint64_t> state_file_bytes);

}  // namespace strata::tiers
