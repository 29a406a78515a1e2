// Files and directories of the store as the system sees them: owned descriptors, private creation, what direct I/O needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/error.hpp"

namespace strata::tiers {

/// Every offset and padded length in the store's files is a multiple of this: the largest block that common drives report.
inline constexpr uint64_t kBlockBytes = 4096;

constexpr uint64_t round_up(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/// An owned file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int descriptor) : descriptor_(descriptor) {}
  FileDescriptor(FileDescriptor&& other) noexcept : descriptor_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();
  int get() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }
  int release() {
    const int descriptor = descriptor_;
    descriptor_ = -1;
    return descriptor;
  }

 private:
  int descriptor_ = -1;
};

/// The error for a refused system call: "cannot <action>: <reason>", at `path`. ENOSPC, EDQUOT and EFBIG become resource_exhausted.
Error system_error(int error_number, const std::string& action, const std::filesystem::path& path);

/// Opens a directory, making it (mode 0700) when absent. Throws io, or invalid_configuration when others may write to it and it is
/// not sticky: they could replace the store's files.
FileDescriptor open_or_make_directory(const std::filesystem::path& path);
/// Opens a directory that must exist.
FileDescriptor open_directory(const std::filesystem::path& path);

enum class Access { read_only, read_write };

/// Makes a new file of mode 0600 whatever the umask; an existing one, a link included, is an error.
FileDescriptor make_file(int directory, const std::string& name, const std::filesystem::path& directory_path);
/// A file that no name leads to and that is gone when it is closed, however the process ends.
FileDescriptor make_anonymous_file(int directory, const std::filesystem::path& directory_path);
/// Opens a regular file of this user's (or root's), not through a link; what is written must have no second name (hard link), which
/// would be changed with it. Never waits, whatever has the name. An absent one gives an empty descriptor. Throws io, invalid_data.
FileDescriptor open_file(int directory, const std::string& name, Access access, const std::filesystem::path& directory_path);
/// The same for reading and writing, of mode 0600 from then on; an absent one is made.
FileDescriptor open_or_make_file(int directory, const std::string& name, const std::filesystem::path& directory_path);

/// Reserves `bytes` on disk. False when the file system cannot reserve and the file was only made that long.
bool preallocate(int file, uint64_t bytes, const std::filesystem::path& path);

/// Turns direct I/O on where the file system says that it supports it with blocks of at most kBlockBytes. On return
/// `alignment_bytes` is what transfers must keep to (1 when buffered), and `reason` says why it stayed off.
struct DirectIo {
  bool on = false;
  uint32_t alignment_bytes = 1;
  std::string reason;
};
DirectIo enable_direct_io(int file);

/// Which file this is and how long: a replaced or truncated file is noticed.
struct FileIdentity {
  uint64_t device = 0, inode = 0, bytes = 0;
  bool operator==(const FileIdentity&) const = default;
};
FileIdentity identity_of(int file, const std::filesystem::path& path);

/// Reads exactly, buffered, at an offset. Throws data_corruption when the file ends before.
void read_exactly(int file, void* data, uint64_t bytes, uint64_t offset, const std::filesystem::path& path);
void write_exactly(int file, const void* data, uint64_t bytes, uint64_t offset, const std::filesystem::path& path);
void sync_file(int file, const std::filesystem::path& path);

/// 4096-byte aligned memory, zeroed.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(uint64_t bytes);
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&&) = delete;
  ~AlignedBuffer();
  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  std::byte* data_;
  uint64_t bytes_;
};

}  // namespace strata::tiers
