#include "tiers/file.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "core/file.hpp"

namespace strata::tiers {

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (descriptor_ >= 0) close(descriptor_);
}

Error system_error(int error_number, const std::string& action, const std::filesystem::path& path) {
  const bool no_space = error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG;
  std::string remedy = no_space ? "free space on that file system, or raise the quota or the file size limit" : remedy_for(error_number);
  if (error_number == ELOOP) remedy = "it is a symbolic link, which the store does not follow: put the file itself there, or choose another directory";
  const std::string reason = error_number == ENOENT ? reason_of_absence(path) : system_reason(error_number);
  return Error(no_space ? ErrorCode::resource_exhausted : ErrorCode::io, fmt::format("cannot {}: {}", action, reason), path.string(),
               remedy);
}

FileDescriptor open_directory(const std::filesystem::path& path) {
  FileDescriptor directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) throw system_error(errno, "open the store's directory", path);
  return directory;
}

FileDescriptor open_or_make_directory(const std::filesystem::path& path) {
  std::error_code ignored;
  const auto parent = std::filesystem::absolute(path).lexically_normal().parent_path();
  std::filesystem::create_directories(parent, ignored);
  const bool made = mkdir(path.c_str(), 0700) == 0;
  if (!made && errno != EEXIST) throw system_error(errno, "make the store's directory", path);
  FileDescriptor directory = open_directory(path);
  if (made && fchmod(directory.get(), 0700) != 0) throw system_error(errno, "make the store's directory private", path);
  struct stat status {};
  if (fstat(directory.get(), &status) != 0) throw system_error(errno, "examine the store's directory", path);
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0 && (status.st_mode & S_ISVTX) == 0) {
    throw Error(ErrorCode::invalid_configuration,
                fmt::format("the store's directory may be written by other users (mode {:04o})", status.st_mode & 07777),
                path.string(), "chmod go-w that directory, or choose one that belongs to you alone");
  }
  return directory;
}

FileDescriptor make_file(int directory, const std::string& name, const std::filesystem::path& directory_path) {
  FileDescriptor file(openat(directory, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) throw system_error(errno, "make the file", directory_path / name);
  // The umask may have taken bits away.
  if (fchmod(file.get(), 0600) != 0) throw system_error(errno, "set the mode of the file", directory_path / name);
  return file;
}

FileDescriptor make_anonymous_file(int directory, const std::filesystem::path& directory_path) {
  FileDescriptor file(openat(directory, ".", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600));
  if (file) return file;
  // Some file systems lack O_TMPFILE; a name that nobody can guess, removed at once, comes close.
  for (int attempt = 0; attempt < 16; ++attempt) {
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != sizeof random) throw system_error(errno, "draw a random name", directory_path);
    const std::string name = fmt::format(".strata.scratch.{:016x}", random);
    file = FileDescriptor(openat(directory, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (file) {
      unlinkat(directory, name.c_str(), 0);
      return file;
    }
    if (errno != EEXIST) break;
  }
  throw system_error(errno, "make a scratch file", directory_path);
}

namespace {

const char* kind_of_file(mode_t mode) {
  return S_ISLNK(mode)    ? "a symbolic link"
         : S_ISDIR(mode)  ? "a directory"
         : S_ISFIFO(mode) ? "a named pipe"
         : S_ISSOCK(mode) ? "a socket"
                          : "a device";
}

/// Throws unless it is what a run of this user's would have made there.
void check_own_file(const struct stat& status, Access access, const std::filesystem::path& path) {
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::invalid_data,
                fmt::format("{} has the name of a file of the run's: it is not a regular file", kind_of_file(status.st_mode)), path.string(),
                "move it away, or use another directory");
  }
  if (status.st_uid != geteuid() && status.st_uid != 0 && geteuid() != 0) {
    throw Error(ErrorCode::io, fmt::format("the file belongs to another user (id {})", status.st_uid), path.string(),
                "use a directory of your own");
  }
  if (access == Access::read_write && status.st_nlink > 1) {
    throw Error(ErrorCode::invalid_data,
                fmt::format("the file has {} names (hard links): what is written to it would change the others, too", status.st_nlink),
                path.string(), "put a copy of it in its place, or use another directory");
  }
}

}  // namespace

FileDescriptor open_file(int directory, const std::string& name, Access access, const std::filesystem::path& directory_path) {
  const auto path = directory_path / name;
  struct stat status {};
  // Looked at before it is opened: opening alone makes some devices act.
  if (fstatat(directory, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) check_own_file(status, access, path);
  const int flags = (access == Access::read_only ? O_RDONLY : O_RDWR) | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  FileDescriptor file(openat(directory, name.c_str(), flags));
  if (!file) {
    if (errno == ENOENT) return file;
    throw system_error(errno, "open the file", path);
  }
  if (fstat(file.get(), &status) != 0) throw system_error(errno, "examine the file", path);
  check_own_file(status, access, path);
  return file;
}

FileDescriptor open_or_make_file(int directory, const std::string& name, const std::filesystem::path& directory_path) {
  for (int attempt = 0; attempt < 16; ++attempt) {
    FileDescriptor file = open_file(directory, name, Access::read_write, directory_path);
    if (!file) file = FileDescriptor(openat(directory, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file && errno == EEXIST) continue;  // made by another process in between
    if (!file) break;
    // The umask may have taken bits away, and an older file may have more of them.
    if (fchmod(file.get(), 0600) != 0) throw system_error(errno, "set the mode of the file", directory_path / name);
    return file;
  }
  throw system_error(errno, "make the file", directory_path / name);
}

bool preallocate(int file, uint64_t bytes, const std::filesystem::path& path) {
  int result = 0;
  do {
    result = fallocate(file, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0) return true;
  const std::string action = fmt::format("reserve {} bytes for the file", bytes);
  if (errno != EOPNOTSUPP && errno != ENOSYS) throw system_error(errno, action, path);
  if (ftruncate(file, static_cast<off_t>(bytes)) != 0) throw system_error(errno, action, path);
  return false;
}

DirectIo enable_direct_io(int file) {
  DirectIo result;
  struct statx status {};
  struct statfs system {};
  uint32_t memory_alignment = 0, offset_alignment = 0;
  // tmpfs accepts O_DIRECT without meaning it: what the file system reports decides, not what open() takes.
  if (statx(file, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 && (status.stx_mask & STATX_DIOALIGN) != 0) {
    memory_alignment = status.stx_dio_mem_align;
    offset_alignment = status.stx_dio_offset_align;
    if (offset_alignment == 0) result.reason = "the file system reports no direct I/O";
  } else if (fstatfs(file, &system) == 0 && system.f_type == TMPFS_MAGIC) {
    result.reason = "the files are in memory (tmpfs)";
  } else {
    memory_alignment = offset_alignment = kBlockBytes;  // a kernel before 6.1 does not say
  }
  if (!result.reason.empty()) return result;
  if (memory_alignment > kBlockBytes || offset_alignment > kBlockBytes || kBlockBytes % std::max(offset_alignment, 1u) != 0) {
    result.reason = fmt::format("direct I/O there needs an alignment of {} bytes", std::max(memory_alignment, offset_alignment));
    return result;
  }
  const int flags = fcntl(file, F_GETFL);
  if (flags < 0 || fcntl(file, F_SETFL, flags | O_DIRECT) != 0) {
    result.reason = "O_DIRECT was refused: " + system_reason(errno);
    return result;
  }
  result.on = true;
  result.alignment_bytes = std::max(memory_alignment, offset_alignment);
  return result;
}

FileIdentity identity_of(int file, const std::filesystem::path& path) {
  struct stat status {};
  if (fstat(file, &status) != 0) throw system_error(errno, "examine the file", path);
  return {status.st_dev, status.st_ino, static_cast<uint64_t>(status.st_size)};
}

void read_exactly(int file, void* data, uint64_t bytes, uint64_t offset, const std::filesystem::path& path) {
  uint64_t done = 0;
  while (done < bytes) {
    const ssize_t moved = pread(file, static_cast<std::byte*>(data) + done, std::min<uint64_t>(bytes - done, 1u << 30),
                                static_cast<off_t>(offset + done));
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) throw system_error(errno, fmt::format("read {} bytes at offset {}", bytes - done, offset + done), path);
    if (moved == 0) {
      throw Error(ErrorCode::data_corruption,
                  fmt::format("the file ends at byte {}, {} were expected: it was truncated", offset + done, offset + bytes),
                  path.string(), "restore the file, or start again from a checkpoint that verifies");
    }
    done += static_cast<uint64_t>(moved);
  }
}

void write_exactly(int file, const void* data, uint64_t bytes, uint64_t offset, const std::filesystem::path& path) {
  uint64_t done = 0;
  while (done < bytes) {
    const ssize_t moved = pwrite(file, static_cast<const std::byte*>(data) + done, std::min<uint64_t>(bytes - done, 1u << 30),
                                 static_cast<off_t>(offset + done));
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) throw system_error(errno, fmt::format("write {} bytes at offset {}", bytes - done, offset + done), path);
    if (moved == 0) throw system_error(ENOSPC, fmt::format("write {} bytes at offset {}", bytes - done, offset + done), path);
    done += static_cast<uint64_t>(moved);
  }
}

void sync_file(int file, const std::filesystem::path& path) {
  if (fsync(file) != 0) throw system_error(errno, "make the file durable", path);
}

AlignedBuffer::AlignedBuffer(uint64_t bytes) : data_(nullptr), bytes_(round_up(std::max<uint64_t>(bytes, 1), kBlockBytes)) {
  data_ = static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, bytes_));
  if (!data_) throw std::bad_alloc();
  std::memset(data_, 0, bytes_);
}

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept : data_(other.data_), bytes_(other.bytes_) { other.data_ = nullptr; }

AlignedBuffer::~AlignedBuffer() { std::free(data_); }

}  // namespace strata::tiers
