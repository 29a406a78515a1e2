// The files that a run leaves: its store, its locks, and what an interrupted process could not remove.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/store_reference.hpp"
#include "scheduler/trainer_record.hpp"
#include "tiers/format.hpp"

namespace strata::cli {

/// The first directory of a store as its commit file describes it. No lock is taken: a run may hold it.
struct StoreView {
  tiers::StoreTable table;
  tiers::CommitRecord record;  // the newest
  std::optional<tiers::DamagedRecord> damaged;  // the other one
  /// What the trainer wrote into the record; absent when it is none of a trainer's.
  std::optional<scheduler::TrainerRecord> trainer() const;
  uint64_t bytes_on_disk() const;
};
/// Absent when the directory has no commit file. Throws data_corruption, invalid_data or io.
std::optional<StoreView> view_store(const std::filesystem::path& directory);

/// All directories of the store whose first one is given, in order, wherever they are (scheduler/store_reference.hpp). Throws invalid_data
/// when one is not found.
std::vector<std::filesystem::path> directories_of_store(const std::filesystem::path& first, const StoreView& view,
                                                        const std::vector<scheduler::StoreMove>& moves);

/// The store of a run: what its store.json or newest checkpoint names, wherever that is now, else the directories of its config.json, whose
/// relative paths are from the current directory. No directories when the run has none or they are not there. Throws when the
/// configuration cannot be read.
scheduler::FoundStore store_of_run(const std::filesystem::path& run_directory, const std::vector<scheduler::StoreMove>& moves);

/// Whether a store holds the state of this run, wherever both were when it was written.
bool is_store_of(const std::filesystem::path& run_directory, const StoreView& view);

/// Who holds the lock of a run or store directory ("process 12 on host x"), absent when nobody does.
std::optional<std::string> lock_holder(const std::filesystem::path& directory);

/// Whether a file or directory of this name is what a process of ours left when it was killed.
bool is_stray_name(const std::string& name);
/// Names of files and directories here that a process of ours left when it was killed; nothing reads them.
std::vector<std::string> stray_names(const std::filesystem::path& directory);

}  // namespace strata::cli
