// Which store holds a run's state, and finding it again when directories were moved or drives mounted elsewhere.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tiers/store.hpp"

namespace strata::scheduler {

/// What a file of a run (a checkpoint's manifest, the run's store.json) says of the store.
struct StoreReference {
  std::optional<tiers::StoreId> id;      // always written; absent in files of older programs
  std::vector<std::string> directories;  // absolute, in the store's order, where they were
  std::vector<std::string> relative;     // the same from the directory of the file; empty in files of older programs
  uint64_t generation = 0;               // the newest that the writer knew
};

/// Of an open store, for a file in `base`.
StoreReference reference_to(const tiers::NvmeStore& store, const std::filesystem::path& base);

/// "OLD=NEW" of the command line: the directory of a store that was OLD is NEW.
struct StoreMove {
  std::filesystem::path from, to;
};
/// Throws invalid_configuration for a text that is none.
std::vector<StoreMove> parse_store_moves(const std::vector<std::string>& texts);

struct StoreSearch {
  std::filesystem::path base;                     // of the file with the reference
  std::vector<StoreMove> moves = {};
  std::vector<std::filesystem::path> configured = {};  // tiers.nvme
  std::string run_directory = {};                 // of the trainer's record: tells the store of a reference without an id
};

struct FoundStore {
  std::vector<std::filesystem::path> directories;  // in the store's order
  std::string moved;                               // "the store has moved: OLD is now NEW", or empty
};

/// Takes for each of the store's directories the first place that holds it, told by the id and number in its state file's header: what
/// `moves` names, the place relative to the file, the place where it was, the configuration's directories, and the directories beside any
/// of these and beside the run. So what lies at the old path now is never taken for what lay there. Takes no lock. Throws invalid_data,
/// naming each directory that was not found, and invalid_configuration for a move that names no directory of the store or leads to none.
FoundStore find_store(const StoreReference& reference, const StoreSearch& search);

}  // namespace strata::scheduler
