#include "cli/path_kind.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>

#include "cli/run_files.hpp"
#include "core/file.hpp"
#include "core/json.hpp"
#include "core/model_origin.hpp"
#include "scheduler/checkpoint_manifest.hpp"
#include "scheduler/run_marker.hpp"
#include "scheduler/run_store.hpp"
#include "scheduler/session_record.hpp"
#include "tiers/format.hpp"
#include "tiers/lock.hpp"

namespace strata::cli {

namespace {

namespace fs = std::filesystem;

constexpr const char* kExpected =
    "name a Hugging Face model directory or its config.json, a .safetensors file, a token file, a checkpoint, the checkpoints/ folder "
    "of a run, a run directory, or a directory of a run's NVMe tier";

bool has(const fs::path& directory, const char* name) { return is_named(directory / name); }

bool holds_weights(const fs::path& directory) {
  return std::any_of(fs::directory_iterator(directory), fs::directory_iterator(), [](const fs::directory_entry& entry) {
    return entry.path().extension() == ".safetensors" || entry.path().filename() == "model.safetensors.index.json";
  });
}

bool holds_checkpoints(const fs::path& directory) {
  return std::any_of(fs::directory_iterator(directory), fs::directory_iterator(), [](const fs::directory_entry& entry) {
    return has(entry.path(), scheduler::kManifestName) || entry.path().extension() == scheduler::kPartialSuffix ||
           entry.path().extension() == scheduler::kRemovedSuffix;
  });
}

[[noreturn]] void refuse(const fs::path& path, const std::string& what) {
  throw Error(ErrorCode::invalid_data, what, path.string(), kExpected);
}

std::optional<PathKind> kind_of_directory(const fs::path& path) {
  if (has(path, scheduler::kManifestName)) return PathKind::checkpoint;
  if (has(path, tiers::kCommitFileName) || has(path, tiers::kStateFileName)) return PathKind::store_directory;
  // Before the model: a run directory has a config.json, too.
  for (const char* name : {scheduler::kMarkerName, "metrics.jsonl", "plan.json", "checkpoints"})
    if (has(path, name)) return PathKind::run_directory;
  if (has(path, "config.json") || holds_weights(path)) return PathKind::model_directory;
  if (holds_checkpoints(path) || path.filename() == "checkpoints") return PathKind::checkpoints_folder;
  if (has(path, tiers::kLockFileName)) return PathKind::store_directory;
  return std::nullopt;
}

/// By what its object holds.
std::optional<PathKind> kind_of_json(const fs::path& path) {
  const Json json = parse_json_file(path, ErrorCode::invalid_data, {.bytes = 100'000'000, .values = 4'000'000, .comments = true});
  if (!json.is_object()) return std::nullopt;
  if (json.contains("format") && json["format"] == "strata-tokens") return PathKind::token_meta;
  if (json.contains("weight_map")) return PathKind::safetensors_index;
  if (json.contains("architectures") || json.contains("model_type")) return PathKind::model_config;
  if (json.contains("model") && json.contains("data")) return PathKind::run_config;
  if (json.contains("traceEvents")) return PathKind::trace;
  if (json.contains("placement") && json.contains("training_state_bytes")) return PathKind::plan;
  if (json.contains("compute_flops") || json.contains("nvme_read_bytes")) return PathKind::machine_rates;
  return std::nullopt;
}

/// An 8-byte length that fits the file, and then a JSON object.
bool begins_as_safetensors(const ReadOnlyFile& file) {
  if (file.size() < 10) return false;
  char head[9];
  file.read(0, head, sizeof head);
  uint64_t length = 0;
  std::memcpy(&length, head, sizeof length);
  return length >= 2 && length <= file.size() - sizeof length && head[8] == '{';
}

}  // namespace

std::string_view to_string(PathKind kind) {
  switch (kind) {
    case PathKind::model_directory: return "model directory";
    case PathKind::model_config: return "model configuration";
    case PathKind::safetensors: return "safetensors file";
    case PathKind::safetensors_index: return "safetensors index";
    case PathKind::tokens: return "token file";
    case PathKind::token_meta: return "description of a token file";
    case PathKind::checkpoint: return "checkpoint";
    case PathKind::checkpoints_folder: return "folder of checkpoints";
    case PathKind::run_directory: return "run directory";
    case PathKind::store_directory: return "store directory";
    case PathKind::run_config: return "run configuration";
    case PathKind::metrics: return "metrics file";
    case PathKind::plan: return "plan of a run";
    case PathKind::trace: return "trace of a run";
    case PathKind::machine_rates: return "machine profile";
    case PathKind::leftover: return "leftover of a killed process";
  }
  return "?";
}

NamedPath identify(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status))
    throw Error(ErrorCode::io,
                error && error != std::errc::no_such_file_or_directory ? "cannot examine it: " + error.message() : reason_of_absence(path),
                path.string(), remedy_for(error ? error.value() : ENOENT));
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const std::string name = path.filename().string();
  // A checkpoint that lacks only its name is one.
  const bool whole_checkpoint = path.extension() != scheduler::kRemovedSuffix && has(path, scheduler::kManifestName);
  if (!whole_checkpoint && is_stray_name(name.empty() ? parent.filename().string() : name)) return {PathKind::leftover, path};
  if (fs::is_directory(status)) {
    const fs::path named = name.empty() ? parent : path;  // "run/" is "run"
    if (named.filename() == scheduler::kStoreFolder && has(named.parent_path(), scheduler::kManifestName))
      return {PathKind::checkpoint, named.parent_path()};  // its copy of the store
    if (const auto kind = kind_of_directory(named)) return {*kind, named};
    refuse(path, fs::is_empty(path, error) ? "the directory is empty" : "the directory holds nothing that Strata knows");
  }
  if (!fs::is_regular_file(status)) refuse(path, "it is neither a file nor a directory");
  if (name == scheduler::kManifestName) return {PathKind::checkpoint, parent};
  if (name == tiers::kCommitFileName || name == tiers::kStateFileName || name == tiers::kLockFileName)
    return identify(parent);
  if (name == scheduler::kMarkerName || name == scheduler::kSessionName || name == scheduler::kRunStoreName)
    return {PathKind::run_directory, parent};
  if (name == kOriginName || name == kCopyListName) return identify(parent);  // the model's, in a run or checkpoint
  if (name == "metrics.jsonl") return {PathKind::metrics, path};
  const ReadOnlyFile file(path);
  if (path.extension() == ".safetensors" || begins_as_safetensors(file)) return {PathKind::safetensors, path};
  if (name.ends_with(".safetensors.index.json")) return {PathKind::safetensors_index, path};  // which may be large: parsed once
  if (path.extension() == ".json") {
    if (const auto kind = kind_of_json(path)) return {*kind, path};
    refuse(path, "the JSON is nothing that Strata reads or writes");
  }
  return {PathKind::tokens, path};
}

}  // namespace strata::cli
