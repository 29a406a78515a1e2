// What a path on the command line is: which of the files and directories that Strata reads or writes.
#pragma once

#include <filesystem>
#include <string_view>

namespace strata::cli {

enum class PathKind {
  model_directory,    // a Hugging Face directory, or one that holds only a config.json
  model_config,       // config.json of a model
  safetensors,
  safetensors_index,
  tokens,
  token_meta,         // FILE.meta.json of a token file
  checkpoint,
  checkpoints_folder,
  run_directory,
  store_directory,
  run_config,         // the configuration of a run
  metrics,            // metrics.jsonl
  plan,               // plan.json
  trace,              // trace.json
  machine_rates,      // the machine profile that `strata plan` takes
  leftover,           // what a killed process of ours left
};
std::string_view to_string(PathKind kind);

struct NamedPath {
  PathKind kind;
  /// What was named, or the directory that a file of a checkpoint or store belongs to.
  std::filesystem::path path;
};

/// Looks at names and the first bytes alone; what is inside may still be broken. A file that is nothing else is taken for tokens,
/// which have no mark of their own in the headerless formats. Throws io when there is no such path, invalid_data, naming what would
/// have been recognized, for any other.
NamedPath identify(const std::filesystem::path& path);

}  // namespace strata::cli
