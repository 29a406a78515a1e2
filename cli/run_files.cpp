#include "cli/run_files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/config.hpp"
#include "core/error.hpp"
#include "scheduler/checkpoint_manifest.hpp"
#include "tiers/file.hpp"
#include "tiers/lock.hpp"

namespace strata::cli {

namespace {

namespace fs = std::filesystem;

bool same_directory(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::equivalent(a, b, error) && !error;
}

/// The lists of directories that a run's files name: its checkpoints from the newest on, then its configuration.
std::vector<std::vector<fs::path>> lists_of_run(const fs::path& run_directory) {
  std::vector<std::vector<fs::path>> lists;
  for (const auto& info : scheduler::list_checkpoints(run_directory / "checkpoints", nullptr)) {
    if (info.kind != scheduler::CheckpointKind::store) continue;
    const auto manifest = scheduler::CheckpointManifest::read(info.path);
    lists.emplace_back(manifest.store_directories.begin(), manifest.store_directories.end());
  }
  std::error_code error;
  if (!fs::is_regular_file(run_directory / "config.json", error)) return lists;
  auto& list = lists.emplace_back();
  for (const auto& directory : read_config(run_directory / "config.json").tiers.nvme) list.push_back(directory.path);
  return lists;
}

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
  StoreView view{tiers::read_table(commit.get(), path), {}};
  view.record = tiers::read_newest_record(commit.get(), view.table, path);
  return view;
}

std::optional<tiers::StateFileHeader> view_state_file(const fs::path& directory) {
  const tiers::FileDescriptor handle = tiers::open_directory(directory);
  const tiers::FileDescriptor state =
      tiers::open_file(handle.get(), tiers::kStateFileName, tiers::Access::read_only, directory);
  if (!state) return std::nullopt;
  const fs::path path = directory / tiers::kStateFileName;
  std::vector<std::byte> block(tiers::kBlockBytes);
  tiers::read_exactly(state.get(), block.data(), block.size(), 0, path);
  return tiers::decode_state_header(block.data(), path.string());
}

std::vector<fs::path> directories_of_store(const fs::path& first, const StoreView& view) {
  const size_t count = view.table.state_file_bytes.size();
  if (count == 1) return {first};
  if (const auto trainer = view.trainer()) {
    for (std::vector<fs::path>& list : lists_of_run(trainer->run_directory))
      if (list.size() == count && same_directory(list.front(), first)) return std::move(list);
  }
  throw Error(ErrorCode::invalid_data, fmt::format("the store has {} directories, and the files of its run, which name them, are not found", count),
              first.string(), "name all of its directories, in the order of tiers.nvme");
}

std::vector<fs::path> store_of_run(const fs::path& run_directory) {
  std::error_code error;
  for (std::vector<fs::path>& list : lists_of_run(run_directory))
    if (!list.empty() && fs::is_directory(list.front(), error)) return std::move(list);
  return {};
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
         name.starts_with(".strata.scratch.") || (name.starts_with("step-") && name.ends_with(scheduler::kPartialSuffix));
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
