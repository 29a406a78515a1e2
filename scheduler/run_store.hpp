// store.json of a run directory: which store the run's state is in, and the newest generation of it that the run knows. So the store is
// found when it was moved, and noticed when its files are older than they should be.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "core/config.hpp"
#include "scheduler/store_reference.hpp"

namespace strata::scheduler {

inline constexpr const char* kRunStoreName = "store.json";

struct RunStore {
  StoreReference store;  // relative paths from the run directory
  int64_t step = 0;      // of that generation
};

/// Durable when it returns. Throws io, resource_exhausted.
void write_run_store(const std::filesystem::path& run_directory, const tiers::NvmeStore& store, int64_t step);

/// What the run knows of its store: from store.json, else from its newest checkpoint that names one. Absent when neither is there. Throws
/// data_corruption when store.json is damaged.
std::optional<RunStore> read_run_store(const std::filesystem::path& run_directory);

/// Where that store is now (store_reference.hpp). Absent when the run knows none, or its store is not found and no move was named. Throws as
/// read_run_store() and, for a move that cannot be, as find_store().
std::optional<FoundStore> find_run_store(const std::filesystem::path& run_directory, const std::vector<std::filesystem::path>& configured,
                                         const std::vector<StoreMove>& moves);

/// What is to be said when a store that is at `generation` is older than the run knows; empty when it is not, or is another store.
std::string older_than_known(const std::filesystem::path& run_directory, const tiers::StoreId& id, uint64_t generation);

/// Makes tiers.nvme name the places where the run's store is: as `moves` says, and where the directories that are configured hold no store or
/// another run's, although the configuration is the run's own, where the store was moved to; `narrate` hears of that. Other configurations
/// are left as they are, for the start of the run to judge. Throws invalid_configuration for a move that cannot be.
void follow_store(Config& config, const std::filesystem::path& run_directory, const std::vector<StoreMove>& moves,
                  const std::function<void(const std::string&)>& narrate);

}  // namespace strata::scheduler
