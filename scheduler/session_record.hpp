// session.json: what a run was last trained with, so that its next start can tell what has changed. The format is described in
// docs/formats.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/config.hpp"
#include "core/model.hpp"
#include "core/tokens.hpp"

namespace strata::scheduler {

inline constexpr const char* kSessionName = "session.json";

/// A file of tokens by its content: where it lies is no part of what it is.
struct DataFile {
  std::string path;    // absolute
  std::string format;  // as it is read
  uint64_t bytes = 0;
  std::string hash;    // core/content_hash.hpp, sampled

  bool same_content(const DataFile& other) const { return format == other.format && bytes == other.bytes && hash == other.hash; }
};

struct SessionRecord {
  std::string run_id;
  int64_t step = 0;     // that it began at
  std::string config;   // JSON text: the configuration with all defaults, paths absolute
  std::string model;    // JSON text: the facts of the model that decide what is computed; empty when they are not known
  std::string weights;  // the weights that the run started from, by their content; empty when they are not known
  std::vector<DataFile> train, eval;
  std::vector<std::pair<std::string, std::string>> machine;  // name and value: "program", "device", "instruction set", ...

  /// Replaces the one of the last session; durable when it returns. Throws io, resource_exhausted.
  void write(const std::filesystem::path& run_directory) const;
  /// Of a run of a version without the file it has the configuration alone; absent when there is none either. Throws data_corruption.
  static std::optional<SessionRecord> read(const std::filesystem::path& run_directory);
};

/// The configuration with absolute paths, so that a run's files are found from anywhere.
Config with_absolute_paths(const Config& config);
/// Every value of a model's description, as JSON text.
std::string model_facts(const ModelDescription& model);
/// Name, size and sampled content of the weight files of a model directory as one hash; empty where there are none. Throws io.
std::string weights_identity(const std::filesystem::path& model_directory);
/// Reads a sample of each file. Throws io.
std::vector<DataFile> describe_data(const TokenDataset& data);

/// Content and order of the training files, the seed and the sequence length, as one short string, whatever the number of files: equal
/// exactly when sample number n is the same tokens.
std::string data_identity(const Config& config, const std::vector<DataFile>& files);
/// What the records of version 1 have instead: the files' names and sizes. Longer with every file.
std::string named_data_identity(const Config& config);

}  // namespace strata::scheduler
