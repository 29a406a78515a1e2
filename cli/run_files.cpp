#include "cli/run_files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/config.hpp"
#include "core/error.hpp"
#include "scheduler/checkpoint_manifest.hpp"
#include "scheduler/run_store.hpp"
#include "tiers/file.hpp"
#include "tiers/lock.hpp"

namespace strata::cli {

namespace {

namespace fs = std::filesystem;

}  // namespace

std::optional<scheduler::TrainerRecord> StoreView::trainer() const {
  try {
    return scheduler::TrainerRecord::from_json(record.payload, "commit record");
  } catch (const Error&) {
    return std::nullopt;
  }
}

uint64_t StoreView::bytes_on_disk() const {
  uint64_t bytes = table.commit_file_bytes();
  for (const uint64_t file : table.state_file_bytes) bytes += file;
  return bytes;
}

std::optional<StoreView> view_store(const fs::path& directory) {
  const tiers::FileDescriptor handle = tiers::open_directory(directory);
  const tiers::FileDescriptor commit =
      tiers::open_file(handle.get(), tiers::kCommitFileName, tiers::Access::read_only, directory);
  if (!commit) return std::nullopt;
  const fs::path path = directory / tiers::kCommitFileName;
  StoreView view{tiers::read_table(commit.get(), path), {}, {}};
  view.record = tiers::read_newest_record(commit.get(), view.table, path, &view.damaged);
  return view;
}

std::vector<fs::path> directories_of_store(const fs::path& first, const StoreView& view, const std::vector<scheduler::StoreMove>& moves) {
  const size_t count = view.table.state_file_bytes.size();
  if (count == 1) return {first};
  // The run that trains on it knows where the others were.
  scheduler::StoreReference reference{.id = view.table.id, .directories = std::vector<std::string>(count, first.string()), .relative = {}};
  scheduler::StoreSearch search{.base = first, .moves = moves, .configured = {first}};
  if (const auto trainer = view.trainer()) {
    try {
      const auto known = scheduler::read_run_store(trainer->run_directory);
      if (known && known->store.id == view.table.id) reference.directories = known->store.directories;
    } catch (const Error&) {
      // A damaged file of the run does not keep the store from being found beside its first directory.
    }
  }
  try {
    return scheduler::find_store(reference, search).directories;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_data) throw;
    throw Error(ErrorCode::invalid_data, fmt::format("the store has {} directories, and not all of them were found", count), error.where(),
                "name all of its directories, or where one is now: --store OLD=NEW");
  }
}

scheduler::FoundStore store_of_run(const fs::path& run_directory, const std::vector<scheduler::StoreMove>& moves) {
  std::vector<fs::path> configured;
  std::error_code error;
  if (fs::is_regular_file(run_directory / "config.json", error))
    for (const auto& directory : read_config(run_directory / "config.json").tiers.nvme) configured.push_back(directory.path);
  if (const auto found = scheduler::find_run_store(run_directory, configured, moves)) return *found;
  for (fs::path& path : configured)
    for (const scheduler::StoreMove& move : moves)
      if (fs::absolute(path).lexically_normal() == move.from) path = move.to;
  if (!configured.empty() && fs::is_directory(configured.front(), error)) return {configured, ""};
  return {};
}

bool is_store_of(const fs::path& run_directory, const StoreView& view) {
  if (const auto known = scheduler::read_run_store(run_directory); known && known->store.id) return known->store.id == view.table.id;
  const auto trainer = view.trainer();
  if (!trainer) return false;
  std::error_code error;
  if (fs::equivalent(trainer->run_directory, run_directory, error)) return true;
  for (const auto& info : scheduler::list_checkpoints(run_directory / "checkpoints", nullptr))
    if (info.record.run_directory == trainer->run_directory) return true;
  return false;
}

std::optional<std::string> lock_holder(const fs::path& directory) {
  const fs::path path = directory / tiers::kLockFileName;
  const tiers::FileDescriptor file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  // A lock that can be shared is held by no run. It is given back at once; a run that starts in between tries again.
  if (!file || flock(file.get(), LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK) return std::nullopt;
  char text[512] = {};
  const ssize_t length = pread(file.get(), text, sizeof text - 1, 0);
  std::string holder(text, length > 0 ? static_cast<size_t>(length) : 0);
  holder.resize(std::min(holder.find('\n'), holder.size()));
  return holder.empty() ? "an unnamed process" : holder;
}

bool is_stray_name(const std::string& name) {
  const size_t temporary = name.rfind(".tmp-");  // core/file.hpp
  return (temporary != std::string::npos && name.size() == temporary + 13) || name == "strata.commit.new" ||
         name.starts_with(".strata.scratch.") || (name.starts_with("step-") && (name.ends_with(scheduler::kPartialSuffix) || name.ends_with(scheduler::kRemovedSuffix)));
}

std::vector<std::string> stray_names(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error))
    if (const std::string name = entry.path().filename().string(); is_stray_name(name)) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace strata::cli
