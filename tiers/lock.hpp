// The lock that keeps two runs out of one store directory.
#pragma once

#include <filesystem>
#include <string>

#include "tiers/file.hpp"

namespace strata::tiers {

enum class LockKind { run, reader };

/// Held until destruction, and given back by the kernel however the process ends. It is a lock on strata.lock and on the directory
/// itself: whoever removes the file lets nobody in. The file stays.
class DirectoryLock {
 public:
  using Kind = LockKind;
  /// Tries for a quarter of a second, because the kernel can keep the descriptor of a killed process for a moment. Throws busy,
  /// naming the process and host that the lock file names; invalid_data when what has the lock file's name is no file of ours.
  DirectoryLock(int directory, const std::filesystem::path& directory_path, Kind kind);
  ~DirectoryLock();
  DirectoryLock(DirectoryLock&& other) noexcept = default;
  DirectoryLock& operator=(DirectoryLock&& other) = delete;

 private:
  void take(int directory, const std::filesystem::path& directory_path);

  Kind kind_;
  FileDescriptor file_, directory_;
};

/// Locks an open file of the directory for as long as it is open: a file that was moved to another directory is not shared either.
/// Waits up to two seconds for a killed process, whose transfers the kernel may still be ending. Throws busy.
void lock_file(int file, LockKind kind, const std::filesystem::path& path);

inline constexpr const char* kLockFileName = "strata.lock";

}  // namespace strata::tiers
