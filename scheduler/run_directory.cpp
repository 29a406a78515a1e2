#include "scheduler/run_directory.hpp"

#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <system_error>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/json.hpp"
#include "scheduler/checkpoint_manifest.hpp"
#include "scheduler/run_marker.hpp"
#include "tiers/lock.hpp"

namespace strata::scheduler {

namespace {

namespace fs = std::filesystem;

constexpr const char* kRemedy = "give --run-dir a new or an empty directory, or one that a run has made";

/// Whether the entry is, or has within it, a directory of the configuration's store.
bool leads_to_a_store(const fs::path& entry, const Config& config) {
  std::error_code error;
  const fs::path here = fs::weakly_canonical(entry, error);
  return std::any_of(config.tiers.nvme.begin(), config.tiers.nvme.end(), [&](const Config::Nvme& directory) {
    const fs::path store = fs::weakly_canonical(fs::absolute(directory.path), error);
    return std::mismatch(here.begin(), here.end(), store.begin(), store.end()).first == here.end();
  });
}

/// Whether the process's own standard output or error goes there, as after "strata train ... > run/log".
bool is_own_output(const fs::path& entry) {
  struct stat named {}, ours {};
  if (stat(entry.c_str(), &named) != 0) return false;
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO})
    if (fstat(stream, &ours) == 0 && ours.st_dev == named.st_dev && ours.st_ino == named.st_ino) return true;
  return false;
}

bool is_unfinished_file(const std::string& name) {
  const size_t temporary = name.rfind(".tmp-");  // core/file.hpp
  return temporary != std::string::npos && is_run_file_name(name.substr(0, temporary));
}

/// Names of what belongs to somebody else, sorted.
std::vector<std::string> foreign_entries(const fs::path& path, const Config& config) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name == tiers::kLockFileName || name == "lost+found" || is_unfinished_file(name)) continue;
    if (leads_to_a_store(at->path(), config) || is_own_output(at->path())) continue;
    names.push_back(name);
  }
  if (error)
    throw Error(ErrorCode::io, fmt::format("cannot list the run directory: {}", error.message()), path.string(),
                "check its permissions, or choose another --run-dir");
  std::sort(names.begin(), names.end());
  return names;
}

bool has_keys(const fs::path& file, std::initializer_list<const char*> keys) {
  std::error_code error;
  if (!fs::is_regular_file(fs::symlink_status(file, error))) return false;
  try {
    const Json json = parse_json_file(file, ErrorCode::invalid_data);
    return json.is_object() && std::all_of(keys.begin(), keys.end(), [&](const char* key) { return json.contains(key); });
  } catch (const Error&) {
    return false;
  }
}

bool has_checkpoint(const fs::path& path) {
  std::error_code error;
  return std::any_of(fs::directory_iterator(path / "checkpoints", error), fs::directory_iterator(), [](const fs::directory_entry& entry) {
    return has_keys(entry.path() / kManifestName, {"format", "kind", "trainer"});
  });
}

/// Whether metrics.jsonl is empty or begins with a step of ours.
bool has_metrics(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(fs::symlink_status(path / "metrics.jsonl", error))) return false;
  std::ifstream in(path / "metrics.jsonl");
  std::string line;
  if (!std::getline(in, line)) return true;
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.contains("step") && json.contains("busy_seconds");
}

/// What versions without a marker left: a plan or a checkpoint of ours, or metrics before either was written.
bool is_of_an_unmarked_run(const fs::path& path, const std::vector<std::string>& entries) {
  if (has_keys(path / "plan.json", {"placement", "training_state_bytes"}) || has_checkpoint(path)) return true;
  const bool only_run_files = std::all_of(entries.begin(), entries.end(), is_run_file_name);
  return only_run_files && has_metrics(path) && !fs::exists(path / "config.json");
}

[[noreturn]] void refuse(const fs::path& path, std::vector<std::string> entries) {
  const bool model = has_keys(path / "config.json", {"architectures"}) || has_keys(path / "config.json", {"model_type"});
  constexpr size_t kShown = 5;
  const size_t more = entries.size() > kShown ? entries.size() - kShown : 0;
  entries.resize(entries.size() - more);
  for (std::string& name : entries) name = printable(name);
  throw Error(ErrorCode::invalid_configuration,
              fmt::format("the run directory holds something else{}: {}{}; nothing was changed", model ? ", a model" : "",
                          fmt::join(entries, ", "), more > 0 ? fmt::format(" and {} more", more) : ""),
              path.string(), kRemedy);
}

}  // namespace

bool is_run_file_name(const std::string& name) {
  constexpr std::array kNames = {"run.json", "session.json", "store.json", "config.json", "plan.json",
                                 "metrics.jsonl", "trace.json", "checkpoints", "strata.lock"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

RunDirectory::RunDirectory(const fs::path& path, const Config& config) : path_(path) {
  std::error_code error;
  for (const auto& store : config.tiers.nvme)
    if (fs::equivalent(path_, store.path, error) ||
        fs::weakly_canonical(fs::absolute(path_), error) == fs::weakly_canonical(fs::absolute(store.path), error))
      throw Error(ErrorCode::invalid_configuration, "the run directory is named as a directory of the NVMe store, too", path_.string(),
                  fmt::format("give the store one of its own, such as {}", (path_ / "nvme").string()));
  if (fs::exists(path_, error) && !fs::is_directory(path_, error))
    throw Error(ErrorCode::io, "the run directory is no directory", path_.string(), kRemedy);
  if (fs::is_directory(path_, error)) {
    const std::vector<std::string> entries = foreign_entries(path_, config);
    if (!entries.empty() && !RunMarker::read(path_) && !is_of_an_unmarked_run(path_, entries)) refuse(path_, entries);
    const fs::perms mode = fs::status(path_, error).permissions();
    if ((mode & (fs::perms::group_write | fs::perms::others_write)) != fs::perms::none)
      notes_.push_back(fmt::format("other users may write to the run directory (mode {:04o}): they can replace its files",
                                   static_cast<unsigned>(mode & fs::perms::mask)));
    return;
  }
  const PrivateFiles private_files;
  made_ = fs::create_directories(path_, error);
  if (error)
    throw Error(ErrorCode::io, fmt::format("cannot make the run directory: {}", error.message()), path_.string(),
                "give --run-dir a directory that can be written");
}

RunDirectory::~RunDirectory() {
  if (!made_) return;
  std::error_code ignored;
  for (const char* name : {kMarkerName, tiers::kLockFileName}) fs::remove(path_ / name, ignored);
  fs::remove(path_, ignored);
}

}  // namespace strata::scheduler
