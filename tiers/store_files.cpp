#include "tiers/store_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <map>

#include "core/config.hpp"
#include "tiers/store_copy.hpp"

namespace strata::tiers {
namespace {

constexpr const char* kNewCommitFileName = "strata.commit.new";

uint64_t device_of(const DirectoryFiles& directory) { return identity_of(directory.handle.get(), directory.path).device; }

void refuse_repeated(const std::vector<DirectoryFiles>& directories) {
  std::map<std::pair<uint64_t, uint64_t>, const std::filesystem::path*> seen;
  for (const auto& directory : directories) {
    const auto identity = identity_of(directory.handle.get(), directory.path);
    const auto [entry, fresh] = seen.try_emplace({identity.device, identity.inode}, &directory.path);
    if (!fresh) {
      throw Error(ErrorCode::invalid_configuration, "two directories of the store are the same",
                  entry->second->string() + ", " + directory.path.string(), "list each once");
    }
  }
}

/// For as long as the files are open: a store is not shared under another directory or without its lock file either.
void lock_open_files(const std::vector<DirectoryFiles>& directories, LockKind kind) {
  for (const auto& directory : directories) {
    if (directory.state) lock_file(directory.state.get(), kind, directory.path / kStateFileName);
    if (directory.commit) lock_file(directory.commit.get(), kind, directory.path / kCommitFileName);
  }
}

/// The files that create() is about to replace must be files of a store that nobody uses.
void refuse_used_files(const std::vector<DirectoryFiles>& directories) {
  for (const auto& directory : directories) {
    for (const char* name : {kStateFileName, kCommitFileName}) {
      const FileDescriptor file = open_file(directory.handle.get(), name, Access::read_write, directory.path);
      if (file) lock_file(file.get(), LockKind::run, directory.path / name);
    }
  }
}

/// What removing the present store would give back.
uint64_t bytes_freed_by_replacing(const DirectoryFiles& directory) {
  uint64_t bytes = 0;
  for (const char* name : {kStateFileName, kCommitFileName, kNewCommitFileName}) {
    struct stat status {};
    if (fstatat(directory.handle.get(), name, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(status.st_mode)) {
      bytes += static_cast<uint64_t>(status.st_blocks) * 512;
    }
  }
  return bytes;
}

/// Directories on one file system draw on the same free space.
void check_free_space(const std::vector<DirectoryFiles>& directories, const std::vector<uint64_t>& needed, bool replacing) {
  struct Need {
    uint64_t needed = 0, available = 0;
    std::string paths;
  };
  std::map<uint64_t, Need> by_device;
  for (size_t i = 0; i < directories.size(); ++i) {
    struct statvfs status {};
    if (fstatvfs(directories[i].handle.get(), &status) != 0) throw system_error(errno, "ask for free space", directories[i].path);
    Need& need = by_device[device_of(directories[i])];
    if (need.paths.empty()) need.available = static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
    if (replacing) need.available += bytes_freed_by_replacing(directories[i]);
    need.needed += needed[i];
    need.paths += (need.paths.empty() ? "" : ", ") + directories[i].path.string();
  }
  std::string short_of;
  for (const auto& [device, need] : by_device) {
    if (need.needed <= need.available) continue;
    short_of += fmt::format("{}{}: needs {} ({} bytes), free are {} ({} bytes)", short_of.empty() ? "" : "; ", need.paths,
                            format_bytes(need.needed), need.needed, format_bytes(need.available), need.available);
  }
  if (!short_of.empty()) {
    throw Error(ErrorCode::resource_exhausted, "the NVMe tier does not fit on the disk", short_of,
                "free space, add a directory on another drive, or keep more of the state in memory");
  }
}

void remove_if_there(const DirectoryFiles& directory, const char* name) {
  if (unlinkat(directory.handle.get(), name, 0) != 0 && errno != ENOENT) {
    throw system_error(errno, "remove the old file", directory.path / name);
  }
}

/// Removes the files of a store that did not come to be.
class RemoveUnlessFinished {
 public:
  explicit RemoveUnlessFinished(const std::vector<DirectoryFiles>& directories) : directories_(directories) {}
  ~RemoveUnlessFinished() {
    if (finished_) return;
    for (const auto& directory : directories_) {
      for (const char* name : {kCommitFileName, kNewCommitFileName, kStateFileName}) unlinkat(directory.handle.get(), name, 0);
    }
  }
  void finish() { finished_ = true; }

 private:
  const std::vector<DirectoryFiles>& directories_;
  bool finished_ = false;
};

void make_state_file(DirectoryFiles& directory, const StateFileHeader& header) {
  const auto path = directory.path / kStateFileName;
  directory.state = make_file(directory.handle.get(), kStateFileName, directory.path);
  directory.reserved = preallocate(directory.state.get(), header.file_bytes, path);
  std::vector<std::byte> block(kBlockBytes);
  encode(header, block.data());
  write_exactly(directory.state.get(), block.data(), block.size(), 0, path);
  sync_file(directory.state.get(), path);
}

void make_scratch_file(DirectoryFiles& directory, uint64_t bytes) {
  if (bytes == 0) return;
  directory.scratch = make_anonymous_file(directory.handle.get(), directory.path);
  directory.reserved = preallocate(directory.scratch.get(), bytes, directory.path / "(scratch)") && directory.reserved;
}

/// Appears under its name when it is whole and every other file is durable: its presence says that there is a store.
void make_commit_file(DirectoryFiles& directory, const StoreTable& table, const CommitRecord& first) {
  const auto path = directory.path / kNewCommitFileName;
  directory.commit = make_file(directory.handle.get(), kNewCommitFileName, directory.path);
  preallocate(directory.commit.get(), table.commit_file_bytes(), path);
  const auto head = encode(table);
  write_exactly(directory.commit.get(), head.data(), head.size(), 0, path);
  std::vector<std::byte> area(table.area_bytes());
  const uint64_t written = encode(first, table.id, area);
  write_exactly(directory.commit.get(), area.data(), written, table.area_offset(first.generation), path);
  sync_file(directory.commit.get(), path);
  if (renameat(directory.handle.get(), kNewCommitFileName, directory.handle.get(), kCommitFileName) != 0) {
    throw system_error(errno, "give the commit file its name", path);
  }
  sync_file(directory.handle.get(), directory.path);
}

/// The last thing before transfers: from here on only they touch the files.
void finish_opening(StoreFiles& files) {
  for (auto& directory : files.directories) {
    directory.state_identity = identity_of(directory.state.get(), directory.path / kStateFileName);
    if (directory.commit) directory.commit_identity = identity_of(directory.commit.get(), directory.path / kCommitFileName);
    directory.direct_io = enable_direct_io(directory.state.get());
    for (const FileDescriptor* file : {&directory.scratch, &directory.commit}) {
      if (!*file || !directory.direct_io.on) continue;
      // One answer for a directory: its files lie on one file system.
      const DirectIo other = enable_direct_io(file->get());
      directory.direct_io.alignment_bytes = std::max(directory.direct_io.alignment_bytes, other.alignment_bytes);
    }
  }
}

[[noreturn]] void refuse_missing(const std::vector<DirectoryFiles>& directories) {
  for (const auto& directory : directories) {
    if (open_file(directory.handle.get(), kCommitFileName, Access::read_only, directory.path)) {
      throw Error(ErrorCode::invalid_data, "the store's directories are listed in another order than it was made with",
                  directory.path.string(), "list this directory first");
    }
  }
  throw Error(ErrorCode::invalid_data, "there is no store", directories[0].path.string(), "name the directories that hold strata.state");
}

void open_files(StoreFiles& files, Access access) {
  auto& directories = files.directories;
  directories[0].commit = open_file(directories[0].handle.get(), kCommitFileName, access, directories[0].path);
  if (!directories[0].commit) refuse_missing(directories);
  const auto commit_path = directories[0].path / kCommitFileName;
  files.table = read_table(directories[0].commit.get(), commit_path);
  if (files.table.state_file_bytes.size() != directories.size()) {
    throw Error(ErrorCode::invalid_data,
                fmt::format("the store spans {} directories, {} are listed", files.table.state_file_bytes.size(), directories.size()),
                commit_path.string(), "list the directories that it was made with, in the same order");
  }
  for (size_t i = 0; i < directories.size(); ++i) {
    auto& directory = directories[i];
    const auto path = directory.path / kStateFileName;
    directory.state = open_file(directory.handle.get(), kStateFileName, access, directory.path);
    if (!directory.state) {
      throw Error(ErrorCode::data_corruption, "a file of the store is missing", path.string(),
                  "restore it, or go back to a checkpoint (strata train --from)");
    }
    std::vector<std::byte> block(kBlockBytes);
    read_exactly(directory.state.get(), block.data(), block.size(), 0, path);
    const StateFileHeader header = decode_state_header(block.data(), path.string());
    if (header.id != files.table.id || header.directory != i || header.directories != directories.size()) {
      throw Error(ErrorCode::invalid_data,
                  fmt::format("the file is part {} of {} of {} store, part {} of {} was expected here", header.directory + 1,
                              header.directories, header.id == files.table.id ? "this" : "another", i + 1, directories.size()),
                  path.string(), "list the directories that the store was made with, in the same order");
    }
    const uint64_t expected = files.table.state_file_bytes[i];
    const uint64_t actual = identity_of(directory.state.get(), path).bytes;
    if (actual != expected || header.file_bytes != expected) {
      throw Error(ErrorCode::data_corruption, fmt::format("the file has {} bytes, {} were expected", actual, expected),
                  path.string(), "restore the file, or go back to a checkpoint that verifies (strata train --from)");
    }
  }
  files.record = read_newest_record(directories[0].commit.get(), files.table, commit_path);
  if (files.record.generation == 0) {
    throw Error(ErrorCode::invalid_data, "the store has no commit yet: it holds no state", commit_path.string(),
                "name the directories of the run's own store");
  }
}

void check_same(const StoreOptions& options, const StoreTable& table, const std::filesystem::path& path) {
  std::string difference;
  if (options.fingerprint != table.fingerprint) {
    difference = fmt::format("its fingerprint is '{}', this run's is '{}'", table.fingerprint, options.fingerprint);
  } else if (options.state.size() != table.extents.size()) {
    difference = fmt::format("it has {} extents, this run {}", table.extents.size(), options.state.size());
  } else {
    for (size_t i = 0; i < table.extents.size() && difference.empty(); ++i) {
      const auto &there = table.extents[i], &here = options.state[i];
      if (there.name == here.name && there.bytes == here.bytes) continue;
      difference = fmt::format("its extent {} is '{}' of {} bytes, this run's is '{}' of {} bytes", i, there.name, there.bytes,
                               here.name, here.bytes);
    }
  }
  if (difference.empty()) return;
  throw Error(ErrorCode::invalid_data, "the store was made for another model, format or layout: " + difference, path.string(),
              "use the configuration that it was made with, or another directory in tiers.nvme");
}

/// A copy's extents have one slot: training on it would write over what is committed.
void refuse_copy(const StoreTable& table, const std::filesystem::path& directory) {
  if (is_copy(table))
    throw Error(ErrorCode::invalid_data, "this store is a copy that a checkpoint keeps: it is read, and no run trains on it", directory.string(),
                "name another directory in tiers.nvme; to go back to the checkpoint: strata train CONFIG --from CHECKPOINT --run-dir NEW");
}

void refuse_replacing_copy(const DirectoryFiles& first) {
  const FileDescriptor commit = open_file(first.handle.get(), kCommitFileName, Access::read_only, first.path);
  if (!commit) return;
  try {
    refuse_copy(read_table(commit.get(), first.path / kCommitFileName), first.path);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::data_corruption) throw;
  }
}

}  // namespace

StoreFiles make_store_files(const StoreOptions& options) {
  StoreFiles files;
  files.layout = lay_out(options);
  std::vector<uint64_t> needed;
  for (size_t i = 0; i < options.directories.size(); ++i) {
    auto& directory = files.directories.emplace_back();
    directory.path = options.directories[i].path;
    directory.handle = open_or_make_directory(directory.path);
    needed.push_back(files.layout.directory_bytes(i));
  }
  refuse_repeated(files.directories);
  for (auto& directory : files.directories) {
    directory.lock = std::make_unique<DirectoryLock>(directory.handle.get(), directory.path, DirectoryLock::Kind::run);
  }
  refuse_used_files(files.directories);
  refuse_replacing_copy(files.directories[0]);
  check_free_space(files.directories, needed, true);

  // Without its commit file the old store is gone; only then may its data go.
  for (const auto& directory : files.directories) {
    remove_if_there(directory, kCommitFileName);
    remove_if_there(directory, kNewCommitFileName);
    sync_file(directory.handle.get(), directory.path);
  }
  for (const auto& directory : files.directories) remove_if_there(directory, kStateFileName);

  RemoveUnlessFinished cleanup(files.directories);
  files.table = {random_store_id(), options.fingerprint, files.layout.state_file_bytes, options.state, files.layout.state};
  const auto count = static_cast<uint32_t>(files.directories.size());
  for (uint32_t i = 0; i < count; ++i) {
    make_state_file(files.directories[i], {files.table.id, i, count, files.layout.state_file_bytes[i]});
    make_scratch_file(files.directories[i], files.layout.scratch_file_bytes[i]);
    sync_file(files.directories[i].handle.get(), files.directories[i].path);
  }
  files.record.extents.resize(options.state.size());
  make_commit_file(files.directories[0], files.table, files.record);
  lock_open_files(files.directories, LockKind::run);
  finish_opening(files);
  cleanup.finish();
  return files;
}

StoreFiles open_store_files(const StoreOptions& listed) {
  if (listed.directories.empty()) lay_out(listed);  // says so
  StoreOptions options = listed;
  std::vector<std::filesystem::path> paths;
  for (const auto& directory : listed.directories) paths.push_back(directory.path);
  options.directories.clear();
  for (const size_t at : store_order(paths)) options.directories.push_back(listed.directories[at]);
  StoreFiles files;
  for (const auto& [path, capacity, weight] : options.directories) {
    auto& directory = files.directories.emplace_back();
    directory.path = path;
    directory.handle = open_or_make_directory(path);
  }
  refuse_repeated(files.directories);
  for (auto& directory : files.directories) {
    directory.lock = std::make_unique<DirectoryLock>(directory.handle.get(), directory.path, DirectoryLock::Kind::run);
  }
  open_files(files, Access::read_write);
  refuse_copy(files.table, files.directories[0].path);
  check_same(options, files.table, files.directories[0].path / kCommitFileName);
  files.layout = lay_out(options, files.table.places, files.table.state_file_bytes);
  check_free_space(files.directories, files.layout.scratch_file_bytes, false);
  for (size_t i = 0; i < files.directories.size(); ++i) {
    make_scratch_file(files.directories[i], files.layout.scratch_file_bytes[i]);
  }
  lock_open_files(files.directories, LockKind::run);
  finish_opening(files);
  return files;
}

StoreFiles open_store_files_read_only(const std::vector<std::filesystem::path>& directories) {
  STRATA_CHECK(!directories.empty(), "no directory");
  StoreFiles files;
  for (const size_t at : store_order(directories)) {
    auto& directory = files.directories.emplace_back();
    directory.path = directories[at];
    directory.handle = open_directory(directory.path);
  }
  refuse_repeated(files.directories);
  for (auto& directory : files.directories) {
    directory.lock = std::make_unique<DirectoryLock>(directory.handle.get(), directory.path, DirectoryLock::Kind::reader);
  }
  open_files(files, Access::read_only);
  files.layout.state = files.table.places;
  files.layout.state_file_bytes = files.table.state_file_bytes;
  files.layout.scratch_file_bytes.resize(directories.size());
  files.layout.commit_file_bytes = files.table.commit_file_bytes();
  lock_open_files(files.directories, LockKind::reader);
  finish_opening(files);
  return files;
}

void check_unchanged(const DirectoryFiles& directory) {
  const auto check = [&](const FileDescriptor& file, const FileIdentity& opened, const char* name) {
    if (!file) return;
    const auto path = directory.path / name;
    struct stat status {};
    const bool there = fstatat(directory.handle.get(), name, &status, AT_SYMLINK_NOFOLLOW) == 0;
    if (!there || status.st_dev != opened.device || status.st_ino != opened.inode) {
      throw Error(ErrorCode::data_corruption, "the store's file was removed or replaced while it was in use", path.string(),
                  "let nothing else touch the store's directory");
    }
    if (const uint64_t bytes = identity_of(file.get(), path).bytes; bytes != opened.bytes) {
      throw Error(ErrorCode::data_corruption, fmt::format("the store's file has {} bytes, it had {}", bytes, opened.bytes),
                  path.string(), "let nothing else touch the store's directory");
    }
  };
  check(directory.state, directory.state_identity, kStateFileName);
  check(directory.commit, directory.commit_identity, kCommitFileName);
}

}  // namespace strata::tiers
