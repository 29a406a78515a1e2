// What a store's files say, read beside a run that may hold it: no lock is taken, nothing is written.
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

bool NvmeStore::has_commit(const std::vector<std::filesystem::path>& directories) {
  if (directories.empty()) return false;
  const FileDescriptor commit = open_commit_file(directories[0]);
  for (size_t i = 1; i < directories.size(); ++i) {
    if (!open_commit_file(directories[i])) continue;
    throw Error(ErrorCode::invalid_data, "this directory is listed as a further one but holds the commit record of a store",
                directories[i].string(), "list the directories in the order that the store was made with, or remove that store");
  }
  if (!commit) return false;
  const auto path = directories[0] / kCommitFileName;
  const StoreTable table = read_table(commit.get(), path);
  return read_newest_record(commit.get(), table, path).generation > 0;
}

StoreSummary NvmeStore::inspect(const std::filesystem::path& directory) {
  const FileDescriptor commit = open_commit_file(directory);
  if (!commit) {
    const FileDescriptor handle = open_directory(directory);
    const auto path = directory / kStateFileName;
    const FileDescriptor state = open_file(handle.get(), kStateFileName, Access::read_only, directory);
    if (!state) throw Error(ErrorCode::invalid_data, "there is no store", directory.string(), "give the directory of a run's NVMe tier");
    std::vector<std::byte> block(kBlockBytes);
    read_exactly(state.get(), block.data(), block.size(), 0, path);
    const StateFileHeader header = decode_state_header(block.data(), path.string());
    throw Error(ErrorCode::invalid_data,
                fmt::format("this is directory {} of {} of a store; its commit record is in the first", header.directory + 1,
                            header.directories),
                directory.string(), header.directory == 0 ? "making the store was interrupted: it holds nothing, remove it"
                                                          : "give the first directory");
  }
  const auto path = directory / kCommitFileName;
  const StoreTable table = read_table(commit.get(), path);
  CommitRecord record = read_newest_record(commit.get(), table, path);
  StoreSummary summary{table.fingerprint, record.generation, std::move(record.payload), table.extents, table.commit_file_bytes()};
  for (const uint64_t bytes : table.state_file_bytes) summary.bytes_on_disk += bytes;
  return summary;
}

}  // namespace strata::tiers
