// The files of a store, made or opened and checked against each other, before any transfer runs on them.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "tiers/file.hpp"
#include "tiers/format.hpp"
#include "tiers/layout.hpp"
#include "tiers/lock.hpp"

namespace strata::tiers {

struct DirectoryFiles {
  std::filesystem::path path;
  FileDescriptor handle;
  std::unique_ptr<DirectoryLock> lock;
  FileDescriptor state, scratch, commit;  // scratch may be absent; commit is the first directory's alone
  FileIdentity state_identity, commit_identity;
  DirectIo direct_io;
  bool reserved = true;  // the file system could set the space aside
};

struct StoreFiles {
  std::vector<DirectoryFiles> directories;
  StoreTable table;
  StoreLayout layout;
  CommitRecord record;  // the newest
};

/// Replaces whatever store the directories hold. On failure nothing of the new one is left.
StoreFiles make_store_files(const StoreOptions& options);
/// For a run. Throws invalid_data when the files are not those of `options`.
StoreFiles open_store_files(const StoreOptions& options);
/// For reading alone.
StoreFiles open_store_files_read_only(const std::vector<std::filesystem::path>& directories);

/// Throws data_corruption when a file was truncated or replaced since it was opened.
void check_unchanged(const DirectoryFiles& directory);

}  // namespace strata::tiers
