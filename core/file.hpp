// Files read and written by position: whole lengths or an error that names path, offset and length.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/error.hpp"

namespace strata {

/// What to do about a system call on a file that was refused for this reason; empty where only the reason helps.
std::string remedy_for(int error_number);
/// Whether the path names anything, a link that leads nowhere included: then opening it says what is wrong. False only where there is
/// certainly nothing.
bool is_named(const std::filesystem::path& path);
/// Why a path cannot be used that leads to nothing: "there is no such file or directory", or what link leads nowhere.
std::string reason_of_absence(const std::filesystem::path& path);
/// The standard library's error as one of ours: what was refused, where, and what to do.
Error to_error(const std::filesystem::filesystem_error& error);

/// A regular file opened for reading. Thread-safe: read() keeps no position. Moves, never copies.
class ReadOnlyFile {
 public:
  /// Throws io if it cannot be opened or is not a regular file.
  explicit ReadOnlyFile(std::filesystem::path path);
  ReadOnlyFile(ReadOnlyFile&& other) noexcept;
  ReadOnlyFile& operator=(ReadOnlyFile&& other) noexcept;
  ReadOnlyFile(const ReadOnlyFile&) = delete;
  ReadOnlyFile& operator=(const ReadOnlyFile&) = delete;
  ~ReadOnlyFile();

  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const { return size_; }  // when it was opened

  /// Fills exactly `bytes` at `out`; blocks. Throws invalid_data if the file ends before, io if the system refuses.
  void read(uint64_t offset, void* out, uint64_t bytes) const;
  /// Tells the kernel that the range will not be read again soon, so that streaming does not push out other pages.
  void drop_cached(uint64_t offset, uint64_t bytes) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

/// A new file that appears under its name only when it is complete: written under a temporary name in the same
/// directory, then synchronized and renamed by finish(). Destroyed before that, it leaves nothing behind. Its mode follows the umask.
class AtomicFile {
 public:
  /// Creates the temporary file. Throws io.
  explicit AtomicFile(std::filesystem::path path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  const std::filesystem::path& path() const { return path_; }

  /// Reserves the space, so that a full disk is found before anything is written. Throws resource_exhausted or io.
  void preallocate(uint64_t bytes);
  /// Writes exactly `bytes`; blocks. Thread-safe. Throws resource_exhausted (disk full, quota, file size limit) or io.
  void write(uint64_t offset, const void* data, uint64_t bytes);
  /// fsync, rename over `path`, fsync of the directory: durable when it returns.
  void finish();

 private:
  void discard() noexcept;

  std::filesystem::path path_, temporary_;
  int descriptor_ = -1;
};

/// While one lives, every file that the process makes is of mode 0600 and every directory of 0700, whatever its umask; destroyed, it
/// puts the umask back. The umask is the process's: make one before other threads make files.
class PrivateFiles {
 public:
  PrivateFiles();
  ~PrivateFiles();
  PrivateFiles(const PrivateFiles&) = delete;
  PrivateFiles& operator=(const PrivateFiles&) = delete;

 private:
  unsigned before_;
};

/// Writes a small file whole through AtomicFile.
void write_file_atomically(const std::filesystem::path& path, const void* data, uint64_t bytes);

/// Makes a directory's entries durable. Throws io.
void sync_directory(const std::filesystem::path& directory);

}  // namespace strata
