#include "scheduler/run_losses.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <system_error>

#include "core/error.hpp"
#include "scheduler/checkpoint.hpp"
#include "scheduler/metrics.hpp"
#include "scheduler/run_marker.hpp"
#include "scheduler/trainer_record.hpp"
#include "tiers/file.hpp"
#include "tiers/format.hpp"
#include "tiers/store.hpp"

namespace strata::scheduler {

namespace {

namespace fs = std::filesystem;

/// What a person calls a run: its directory's own name, its path, its id. The path is the second.
std::vector<std::string> names_of_run(const fs::path& directory, const std::string& run_id) {
  std::vector<std::string> names = {directory.filename().string(), directory.string()};
  if (!run_id.empty()) names.push_back(run_id);
  return names;
}

/// A directory's own name that several of the runs have names none of them.
void remove_ambiguous_names(std::vector<Loss>& losses) {
  std::map<std::string, std::set<std::string>> paths;  // by own name
  for (const Loss& loss : losses)
    for (const std::string& name : loss.names)
      if (fs::path(name).is_absolute()) paths[fs::path(name).filename().string()].insert(name);
  for (Loss& loss : losses)
    std::erase_if(loss.names, [&](const std::string& name) {
      return name.empty() || (name.find('/') == std::string::npos && paths.contains(name) && paths.at(name).size() > 1);
    });
}

std::optional<Loss> loss_in_run_directory(const fs::path& run_directory) {
  std::error_code error;
  const fs::path here = fs::canonical(run_directory, error);
  std::vector<std::string> checkpoints;
  std::vector<IgnoredCheckpoint> ignored;
  int64_t step = last_step_in_metrics(run_directory);
  for (const CheckpointInfo& info : list_checkpoints(run_directory / "checkpoints", &ignored)) {
    checkpoints.push_back(info.path.filename().string());
    step = std::max(step, info.record.step);
  }
  for (const IgnoredCheckpoint& one : ignored)
    if (!one.unfinished) checkpoints.push_back(one.path.filename().string() + " (not whole)");
  if (checkpoints.empty()) return std::nullopt;
  std::sort(checkpoints.begin(), checkpoints.end());
  const std::optional<RunMarker> marker = RunMarker::read(run_directory);
  return Loss{fmt::format("the run \"{}\" ({}): {} steps, checkpoints {}", here.filename().string(), here.string(), step,
                          fmt::join(checkpoints, ", ")),
              names_of_run(here, marker ? marker->run_id : "")};
}

std::vector<std::string> names_of_store(const fs::path& directory) {
  std::error_code error;
  return {directory.string(), fs::weakly_canonical(fs::absolute(directory), error).string()};
}

/// The state that a store's commit file tells of; absent when nothing was ever committed.
std::optional<Loss> loss_in_store(const fs::path& directory) {
  Loss loss{{}, names_of_store(directory)};
  tiers::StoreSummary summary;
  try {
    summary = tiers::NvmeStore::inspect(directory);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::io) throw;
    loss.text = fmt::format("a damaged store in {} ({}), whose run is not known", directory.string(), error.message());
    return loss;
  }
  if (summary.generation == 0) return std::nullopt;
  try {
    const TrainerRecord record = TrainerRecord::from_json(summary.record, directory.string());
    const fs::path run(record.run_directory);
    loss.text = fmt::format("the store in {} at generation {}: the state at step {} of the run \"{}\" ({})", directory.string(),
                            summary.generation, record.step, run.filename().string(), run.string());
    const std::vector<std::string> names = names_of_run(run, record.run_id);
    loss.names.insert(loss.names.begin(), names.begin(), names.end());
  } catch (const Error&) {
    loss.text = fmt::format("the store in {} at generation {}, whose run is not known", directory.string(), summary.generation);
  }
  return loss;
}

/// The header of a directory's state file, where it is whole.
std::optional<tiers::StateFileHeader> state_header(const fs::path& directory) {
  try {
    const tiers::FileDescriptor handle = tiers::open_directory(directory);
    const tiers::FileDescriptor file = tiers::open_file(handle.get(), tiers::kStateFileName, tiers::Access::read_only, directory);
    if (!file) return std::nullopt;
    std::vector<std::byte> block(tiers::kBlockBytes);
    tiers::read_exactly(file.get(), block.data(), block.size(), 0, directory / tiers::kStateFileName);
    return tiers::decode_state_header(block.data(), (directory / tiers::kStateFileName).string());
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Directories of the store hold nothing, a commit, or a part of a store whose commit is in its first directory.
void add_store_losses(const Config& config, std::vector<Loss>& losses) {
  std::error_code error;
  std::optional<tiers::StoreId> first_id;
  for (size_t i = 0; i < config.tiers.nvme.size(); ++i) {
    const fs::path directory = config.tiers.nvme[i].path;
    if (!fs::is_directory(directory, error)) continue;
    const std::optional<tiers::StateFileHeader> header = state_header(directory);
    if (i == 0 && header) first_id = header->id;
    if (fs::exists(fs::symlink_status(directory / tiers::kCommitFileName, error))) {
      if (std::optional<Loss> loss = loss_in_store(directory)) losses.push_back(std::move(*loss));
    } else if (header && header->directory > 0 && header->id != first_id) {
      losses.push_back({fmt::format("part {} of {} of a store whose other parts are not named, in {}", header->directory + 1,
                                    header->directories, directory.string()),
                        names_of_store(directory)});
    }
  }
}

}  // namespace

std::vector<Loss> find_losses(const LossRequest& request) {
  std::vector<Loss> losses;
  if (request.starts_over)
    if (std::optional<Loss> loss = loss_in_run_directory(request.run_directory)) losses.push_back(std::move(*loss));
  if (request.uses_store) add_store_losses(request.config, losses);
  remove_ambiguous_names(losses);
  return losses;
}

std::vector<std::string> refuse_unnamed_losses(const LossRequest& request) {
  std::vector<std::string> unnamed, going;
  std::string example;
  for (const Loss& loss : find_losses(request)) {
    const bool named = std::any_of(loss.names.begin(), loss.names.end(), [&](const std::string& name) {
      return std::find(request.discard.begin(), request.discard.end(), name) != request.discard.end();
    });
    (named ? going : unnamed).push_back(loss.text);
    if (!named && example.find(" --discard " + loss.names.front()) == std::string::npos) example += " --discard " + loss.names.front();
  }
  if (unnamed.empty()) return going;
  throw Error(ErrorCode::invalid_configuration,
              fmt::format("starting here anew would lose saved state for good:\n  - {}", fmt::join(unnamed, "\n  - ")),
              request.run_directory.string(),
              fmt::format("continue that run (--resume auto), or choose another --run-dir and other tiers.nvme directories; only to lose "
                          "what is listed: --resume never{}",
                          example));
}

}  // namespace strata::scheduler
