// A copy of what a store has committed, as a store of its own that is only read: one slot an extent, packed.
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "tiers/format.hpp"

namespace strata::tiers {

/// Makes DESTINATION/0, DESTINATION/1, ... from the store's directories, with the content that `record`, a record of the table, names. Where the
/// file system can, the bytes are shared (FICLONERANGE), which takes no time and, until the store overwrites them, no space; otherwise
/// they are read, checked against their checksums and written. Durable when it returns; a failure leaves a part of it. The store's
/// committed slots must not change meanwhile. `progress` counts bytes. Throws data_corruption (a checksum), io, resource_exhausted.
void copy_committed(const StoreTable& table, const CommitRecord& record, const std::vector<std::filesystem::path>& directories,
                    const std::filesystem::path& destination, const std::function<void(uint64_t done, uint64_t total)>& progress);

/// Whether a table is that of such a copy: it has no second slot to write to, so no run may train on it.
bool is_copy(const StoreTable& table);

}  // namespace strata::tiers
