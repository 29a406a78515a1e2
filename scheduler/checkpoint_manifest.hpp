// checkpoint.json: what a checkpoint directory holds. The format is described in docs/formats.md.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/config.hpp"
#include "scheduler/checkpoint.hpp"

namespace strata::scheduler {

inline constexpr const char* kManifestName = "checkpoint.json";
/// A checkpoint that is still being written, or was when its run died.
inline constexpr const char* kPartialSuffix = ".partial";
/// Holds the model's configuration and tokenizer files, and for kind `files` the fp32 master weights.
inline constexpr const char* kModelFolder = "master";
const char* folder_of(Quantity quantity);

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
  std::vector<std::string> store_directories;
  uint64_t store_generation = 0;
  uint64_t tile_elements = 0;

  std::string to_json() const;
  /// Throws invalid_data (missing, foreign) or data_corruption (not whole).
  static CheckpointManifest read(const std::filesystem::path& checkpoint);
};

}  // namespace strata::scheduler
