// checkpoint.json: what a checkpoint directory holds. The format is described in docs/formats.md.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/config.hpp"
#include "scheduler/checkpoint.hpp"
#include "scheduler/checkpoint_directory.hpp"
#include "scheduler/store_reference.hpp"

namespace strata::scheduler {

inline constexpr const char* kManifestName = "checkpoint.json";
/// Holds the model's configuration and tokenizer files, and for kind `files` the fp32 master weights.
inline constexpr const char* kModelFolder = "master";
const char* folder_of(Quantity quantity);
/// Holds a copy's store, a directory (0, 1, ...) for each of the store's.
inline constexpr const char* kStoreFolder = "store";

struct CheckpointManifest {
  CheckpointKind kind = CheckpointKind::files;
  TrainerRecord record;
  StateFormat format;
  struct File {
    std::string path;  // relative to the checkpoint
    uint64_t bytes = 0;
    std::string xxh3;  // XXH3-128 of the content, hex
  };
  std::vector<File> files;
  // kind `store`
  StoreReference store;  // relative paths from the checkpoint's directory
  bool copy = false;     // the store lies in the checkpoint itself, a copy of the run's
  uint64_t tile_elements = 0;

  /// Where the store is now, for a manifest read from `checkpoint`; see find_store(). Throws as that.
  FoundStore locate_store(const std::filesystem::path& checkpoint, const std::vector<StoreMove>& moves = {},
                          const std::vector<std::filesystem::path>& configured = {}) const;

  std::string to_json() const;
  /// Every word is one of those that are written and every number in its range; whether the files and the store agree is for their reader
  /// to check. Throws invalid_data (missing, foreign, of a later version) or data_corruption (not whole).
  static CheckpointManifest read(const std::filesystem::path& checkpoint);
};

}  // namespace strata::scheduler
