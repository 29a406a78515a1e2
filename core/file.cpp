#include "core/file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/printable.hpp"

namespace strata {
namespace {

// Linux moves at most 0x7ffff000 bytes a call; a smaller piece keeps a failing transfer easy to name.
constexpr uint64_t kPieceBytes = 64ull << 20;

[[noreturn]] void throw_system_error(int error_number, const std::string& action, const std::filesystem::path& path) {
  const bool full = error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG;
  const std::string reason = error_number == ENOENT ? reason_of_absence(path) : system_reason(error_number);
  throw Error(full ? ErrorCode::resource_exhausted : ErrorCode::io, fmt::format("{}: {}", action, reason), path.string(),
              remedy_for(error_number));
}

}  // namespace

std::string remedy_for(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return "free some space there or choose another directory";
    case ENOENT:
    case ENOTDIR:
    case ENAMETOOLONG: return "check the path; a relative one starts at the current directory";
    case EACCES:
    case EPERM: return "check the permissions of the file and of its directories";
    case EROFS: return "choose a directory that can be written";
    case EMFILE:
    case ENFILE: return "raise the number of open files (ulimit -n)";
    case ENOMEM: return "free some memory, or raise the limit of this process";
    case ELOOP: return "it is a symbolic link where none is followed, or one that leads back to itself: name the file itself";
    case EIO: return "check the drive and the system's log";
    case ESTALE: return "the network file system lost the file: mount it again";
    default: return {};
  }
}

bool is_named(const std::filesystem::path& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

std::string reason_of_absence(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path parent = path.parent_path();
  if (!is_named(path) && (parent.empty() || std::filesystem::exists(parent, error))) return "there is no such file or directory";
  // The first part of the path that is not there is the reason, or a link that leads to nothing.
  std::filesystem::path part;
  for (const auto& name : path) {
    part /= name;
    const auto itself = std::filesystem::symlink_status(part, error);
    if (std::filesystem::is_symlink(itself) && !std::filesystem::exists(part, error)) {
      const auto target = std::filesystem::read_symlink(part, error);
      return fmt::format("{} is a symbolic link to {}, which is not there", shown_text(part.string()), shown_text(target.string()));
    }
    if (!std::filesystem::exists(itself)) break;
  }
  return "there is no such file or directory";
}

Error to_error(const std::filesystem::filesystem_error& error) {
  // "filesystem error: cannot copy file: No space left on device [/a] [/b]"
  constexpr std::string_view kPrefix = "filesystem error: ";
  std::string action = error.what();
  if (action.starts_with(kPrefix)) action.erase(0, kPrefix.size());
  action.resize(std::min(action.find(": " + error.code().message()), action.size()));
  const int number = error.code().value();
  const bool full = number == ENOSPC || number == EDQUOT || number == EFBIG;
  std::string where = error.path1().string();
  if (!error.path2().empty()) where += " and " + error.path2().string();
  const std::string reason = number == ENOENT ? reason_of_absence(error.path1()) : error.code().message();
  return Error(full ? ErrorCode::resource_exhausted : ErrorCode::io, fmt::format("{}: {}", action, reason), where, remedy_for(number));
}

ReadOnlyFile::ReadOnlyFile(std::filesystem::path path) : path_(std::move(path)) {
  // O_NONBLOCK: opening a FIFO by mistake must fail the check below, not hang.
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (descriptor_ < 0) throw_system_error(errno, "cannot open for reading", path_);
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) {
    const int reason = errno;
    ::close(std::exchange(descriptor_, -1));
    throw_system_error(reason, "cannot read the file's size", path_);
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(std::exchange(descriptor_, -1));
    throw Error(ErrorCode::io, "not a regular file", path_.string(), "name a file");
  }
  size_ = static_cast<uint64_t>(status.st_size);
}

ReadOnlyFile::ReadOnlyFile(ReadOnlyFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)), size_(other.size_) {}

ReadOnlyFile& ReadOnlyFile::operator=(ReadOnlyFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  return *this;
}

ReadOnlyFile::~ReadOnlyFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void ReadOnlyFile::read(uint64_t offset, void* out, uint64_t bytes) const {
  char* to = static_cast<char*>(out);
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t piece = std::min(bytes - done, kPieceBytes);
    const ssize_t got = ::pread(descriptor_, to + done, piece, static_cast<off_t>(offset + done));
    if (got < 0) {
      if (errno == EINTR) continue;
      throw_system_error(errno, fmt::format("reading {} bytes at offset {} failed", bytes, offset), path_);
    }
    if (got == 0) {
      throw Error(ErrorCode::invalid_data,
                  fmt::format("the file ends at offset {} where {} more bytes are needed", offset + done, bytes - done),
                  path_.string(), "the file is truncated or was changed while in use; get a whole copy of it");
    }
    done += static_cast<uint64_t>(got);
  }
}

void ReadOnlyFile::drop_cached(uint64_t offset, uint64_t bytes) const {
  // Only advice: a refusal changes nothing that matters.
  static_cast<void>(
      ::posix_fadvise(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED));
}

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  std::random_device random;
  for (int attempt = 0; attempt < 16; ++attempt) {
    temporary_ = path_;
    temporary_ += fmt::format(".tmp-{:08x}", random());
    descriptor_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (descriptor_ >= 0) return;
    if (errno != EEXIST) break;
  }
  throw_system_error(errno, "cannot create the file", path_);
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  if (descriptor_ < 0) return;
  ::close(std::exchange(descriptor_, -1));
  ::unlink(temporary_.c_str());
}

void AtomicFile::preallocate(uint64_t bytes) {
  if (bytes == 0) return;
  int result = 0;
  do {
    result = ::fallocate(descriptor_, 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  } while (result == EINTR);
  if (result == EOPNOTSUPP || result == ENOSYS) {  // the file system cannot reserve: at least fix the size
    result = ::ftruncate(descriptor_, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  }
  if (result != 0) throw_system_error(result, fmt::format("cannot reserve {} bytes", bytes), path_);
}

void AtomicFile::write(uint64_t offset, const void* data, uint64_t bytes) {
  const char* from = static_cast<const char*>(data);
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t piece = std::min(bytes - done, kPieceBytes);
    const ssize_t put = ::pwrite(descriptor_, from + done, piece, static_cast<off_t>(offset + done));
    if (put < 0) {
      if (errno == EINTR) continue;
      throw_system_error(errno, fmt::format("writing {} bytes at offset {} failed", bytes, offset), path_);
    }
    STRATA_CHECK(put != 0, "pwrite of {} bytes at {} wrote nothing", piece, offset + done);
    done += static_cast<uint64_t>(put);
  }
}

void AtomicFile::finish() {
  STRATA_CHECK(descriptor_ >= 0, "{} is finished already", path_.string());
  if (::fsync(descriptor_) != 0) throw_system_error(errno, "cannot make the file durable", path_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    throw_system_error(errno, "cannot give the file its name", path_);
  ::close(std::exchange(descriptor_, -1));
  sync_directory(path_.parent_path());
}

PrivateFiles::PrivateFiles() : before_(::umask(0077)) {}

PrivateFiles::~PrivateFiles() { ::umask(static_cast<mode_t>(before_)); }

void write_file_atomically(const std::filesystem::path& path, const void* data, uint64_t bytes) {
  AtomicFile file(path);
  file.write(0, data, bytes);
  file.finish();
}

void sync_directory(const std::filesystem::path& directory) {
  const std::filesystem::path name = directory.empty() ? std::filesystem::path(".") : directory;
  const int descriptor = ::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw_system_error(errno, "cannot open the directory", name);
  const int result = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  // Some network file systems refuse fsync of a directory; their renames are durable by themselves.
  if (result != 0 && result != EINVAL) throw_system_error(result, "cannot make the directory durable", name);
}

}  // namespace strata
