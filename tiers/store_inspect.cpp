// What a store's files say, read beside a run that may hold it: no lock is taken, nothing is written.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <numeric>

#include "tiers/format.hpp"

namespace strata::tiers {
namespace {

/// The commit file of a directory, or nothing when there is none.
FileDescriptor open_commit_file(const std::filesystem::path& directory) {
  std::error_code ignored;
  if (!std::filesystem::exists(directory, ignored)) return {};
  const FileDescriptor handle = open_directory(directory);
  return open_file(handle.get(), kCommitFileName, Access::read_only, directory);
}

}  // namespace

std::optional<StateFileHeader> read_state_header(const std::filesystem::path& directory) {
  const FileDescriptor handle = open_directory(directory);
  const FileDescriptor state = open_file(handle.get(), kStateFileName, Access::read_only, directory);
  if (!state) return std::nullopt;
  const auto path = directory / kStateFileName;
  std::vector<std::byte> block(kBlockBytes);
  read_exactly(state.get(), block.data(), block.size(), 0, path);
  return decode_state_header(block.data(), path.string());
}

bool holds_state(int state_file, const std::filesystem::path& path) {
  const auto end = static_cast<off_t>(identity_of(state_file, path).bytes);
  std::vector<std::byte> piece(uint64_t{1} << 20);
  // Holes and space that was only reserved are skipped where the file system knows them.
  for (off_t at = static_cast<off_t>(kBlockBytes); at < end;) {
    const off_t data = lseek(state_file, at, SEEK_DATA);
    if (data < 0 && errno == ENXIO) return false;
    at = data < 0 ? at : data;
    const auto bytes = std::min<uint64_t>(piece.size(), static_cast<uint64_t>(end - at));
    read_exactly(state_file, piece.data(), bytes, static_cast<uint64_t>(at), path);
    if (std::any_of(piece.begin(), piece.begin() + static_cast<int64_t>(bytes), [](std::byte byte) { return byte != std::byte{0}; })) return true;
    at += static_cast<off_t>(bytes);
  }
  return false;
}

std::vector<size_t> store_order(const std::vector<std::filesystem::path>& directories) {
  std::vector<size_t> listed(directories.size()), order(directories.size());
  std::iota(listed.begin(), listed.end(), 0);
  std::vector<bool> taken(directories.size());
  std::optional<StoreId> id;
  for (size_t i = 0; i < directories.size(); ++i) {
    std::error_code ignored;
    std::optional<StateFileHeader> header;
    try {
      if (std::filesystem::is_directory(directories[i], ignored)) header = read_state_header(directories[i]);
    } catch (const Error&) {
      return listed;  // opening says what is wrong with it
    }
    if (!header || header->directories != directories.size() || header->directory >= directories.size()) return listed;
    if (taken[header->directory] || (id && *id != header->id)) return listed;
    id = header->id;
    taken[header->directory] = true;
    order[header->directory] = i;
  }
  return order;
}

namespace {

/// There is no commit file in the first directory: throws when a state file beside it, or further on, holds what only that could explain.
void refuse_lost_commit_file(const std::filesystem::path& directory) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(directory, ignored)) return;
  const FileDescriptor handle = open_directory(directory);
  const FileDescriptor state = open_file(handle.get(), kStateFileName, Access::read_only, directory);
  const auto path = directory / kStateFileName;
  if (!state || !holds_state(state.get(), path)) return;
  throw Error(ErrorCode::data_corruption,
              fmt::format("there is the state of a store, but not its {}, without which it cannot be read", kCommitFileName), path.string(),
              fmt::format("put {} back into the store's first directory from where it went or from a copy, or mount its drive; the state is "
                          "left as it is meanwhile",
                          kCommitFileName));
}

std::vector<std::filesystem::path> ordered(const std::vector<std::filesystem::path>& directories) {
  std::vector<std::filesystem::path> paths;
  for (const size_t at : store_order(directories)) paths.push_back(directories[at]);
  return paths;
}

}  // namespace

bool NvmeStore::has_commit(const std::vector<std::filesystem::path>& listed) {
  if (listed.empty()) return false;
  const std::vector<std::filesystem::path> directories = ordered(listed);
  const FileDescriptor commit = open_commit_file(directories[0]);
  for (size_t i = 1; i < directories.size(); ++i) {
    if (!open_commit_file(directories[i])) continue;
    throw Error(ErrorCode::invalid_data,
                commit ? "this directory holds a store of its own, and another directory does, too"
                       : "this directory holds the commit record of a store, whose other directories are not those that are listed",
                directories[i].string(), "list the directories of one store in tiers.nvme, all of them and no others");
  }
  if (!commit) {
    for (const auto& directory : directories) refuse_lost_commit_file(directory);
    return false;
  }
  const auto path = directories[0] / kCommitFileName;
  const StoreTable table = read_table(commit.get(), path);
  return read_newest_record(commit.get(), table, path).generation > 0;
}

StoreSummary NvmeStore::inspect(const std::vector<std::filesystem::path>& directories) {
  STRATA_CHECK(!directories.empty(), "no directory");
  return inspect(ordered(directories).front());
}

StoreSummary NvmeStore::inspect(const std::filesystem::path& directory) {
  const FileDescriptor commit = open_commit_file(directory);
  if (!commit) {
    const std::optional<StateFileHeader> header = read_state_header(directory);
    if (!header) throw Error(ErrorCode::invalid_data, "there is no store", directory.string(), "give the directory of a run's NVMe tier");
    if (header->directory == 0) refuse_lost_commit_file(directory);
    throw Error(ErrorCode::invalid_data,
                fmt::format("this is directory {} of {} of a store; its commit record is in the first", header->directory + 1,
                            header->directories),
                directory.string(), header->directory == 0 ? "making the store was interrupted before it held any state: nothing was lost, and "
                                                             "the next run that uses the directory makes its store there"
                                                           : "give the first directory");
  }
  const auto path = directory / kCommitFileName;
  const StoreTable table = read_table(commit.get(), path);
  std::optional<DamagedRecord> damaged;
  CommitRecord record = read_newest_record(commit.get(), table, path, &damaged);
  StoreSummary summary{.id = table.id,
                       .fingerprint = table.fingerprint,
                       .generation = record.generation,
                       .record = std::move(record.payload),
                       .damaged_record = damaged ? damaged->text() : "",
                       .commit_lost = damaged && damaged->may_be_newer(),
                       .state = table.extents,
                       .bytes_on_disk = table.commit_file_bytes()};
  for (const uint64_t bytes : table.state_file_bytes) summary.bytes_on_disk += bytes;
  return summary;
}

}  // namespace strata::tiers
