#include "tiers/lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

namespace strata::tiers {
namespace {

constexpr int kAttempts = 6;        // of a directory
constexpr int kFileAttempts = 40;
constexpr std::chrono::milliseconds kPause{50};

std::string this_process() {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  return fmt::format("process {} on host {}", getpid(), host);
}

std::string holder_of(int file) {
  char text[512] = {};
  const ssize_t length = pread(file, text, sizeof text - 1, 0);
  std::string holder(text, length > 0 ? static_cast<size_t>(length) : 0);
  holder.resize(std::min(holder.find('\n'), holder.size()));
  return holder;
}

int operation(LockKind kind) { return kind == LockKind::run ? LOCK_EX : LOCK_SH; }

bool acquire(int file, LockKind kind, int attempts) {
  for (int attempt = 0; attempt < attempts; ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(kPause);
    if (flock(file, operation(kind) | LOCK_NB) == 0) return true;
    if (errno != EWOULDBLOCK && errno != EINTR) break;
  }
  return false;
}

bool held_by_another(int error_number) { return error_number == EWOULDBLOCK || error_number == EINTR; }

[[noreturn]] void refuse_busy(int file, LockKind kind, const std::filesystem::path& directory) {
  // A run that is refused although readers could come in is refused because of readers.
  if (kind == LockKind::run && flock(file, LOCK_SH | LOCK_NB) == 0) {
    throw Error(ErrorCode::busy, "it is being read by another process (an export or a verification)", directory.string(),
                "wait until it ends");
  }
  const std::string holder = holder_of(file);
  std::string who = holder.empty() ? "an unnamed process" : holder;
  // Process ids repeat: in another container, or when this process has the directory open under a second name.
  if (holder == this_process()) who = "a process with this one's id, as in another container, or this run itself by another path";
  throw Error(ErrorCode::busy, fmt::format("another run holds this directory: {}", who), directory.string(),
              "wait until it ends or stop it; two runs need two directories");
}

}  // namespace

DirectoryLock::DirectoryLock(int directory, const std::filesystem::path& directory_path, Kind kind) : kind_(kind) {
  const auto path = directory_path / kLockFileName;
  for (int attempt = 0;; ++attempt) {
    take(directory, directory_path);
    // Removed or replaced between the opening and the locking, this file keeps nobody out.
    struct stat ours {}, named {};
    if (fstat(file_.get(), &ours) != 0) throw system_error(errno, "examine the lock file", path);
    const bool there = fstatat(directory, kLockFileName, &named, AT_SYMLINK_NOFOLLOW) == 0;
    if (there && ours.st_dev == named.st_dev && ours.st_ino == named.st_ino) break;
    if (attempt == kAttempts)
      throw Error(ErrorCode::busy, "the lock file is being replaced again and again", path.string(), "let nothing else touch it");
  }
  directory_ = FileDescriptor(openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // File systems that cannot lock a directory (some network ones) leave the lock file alone to do it.
  if (directory_ && !acquire(directory_.get(), kind_, kAttempts) && held_by_another(errno)) {
    throw Error(ErrorCode::busy, "another run holds this directory, and its lock file was removed under it", directory_path.string(),
                "wait until it ends or stop it; two runs need two directories");
  }
  if (kind_ == Kind::reader) return;
  const std::string text = this_process() + "\n";
  if (ftruncate(file_.get(), 0) != 0) throw system_error(errno, "write the lock file", path);
  write_exactly(file_.get(), text.data(), text.size(), 0, path);
}

DirectoryLock::~DirectoryLock() {
  // Nobody holds it from here on, so it names nobody. A failure leaves a name that the next holder replaces.
  if (file_ && kind_ == Kind::run) static_cast<void>(!ftruncate(file_.get(), 0));
}

void DirectoryLock::take(int directory, const std::filesystem::path& directory_path) {
  const auto path = directory_path / kLockFileName;
  file_ = kind_ == Kind::run ? open_or_make_file(directory, kLockFileName, directory_path)
                             : open_file(directory, kLockFileName, Access::read_only, directory_path);
  if (!file_) {
    throw Error(ErrorCode::invalid_data, "no store has been made in this directory", directory_path.string(),
                "give the directory of a run's NVMe tier");
  }
  if (acquire(file_.get(), kind_, kAttempts)) return;
  if (!held_by_another(errno)) throw system_error(errno, "lock the lock file", path);
  refuse_busy(file_.get(), kind_, directory_path);
}

void lock_file(int file, LockKind kind, const std::filesystem::path& path) {
  if (acquire(file, kind, kFileAttempts)) return;
  if (!held_by_another(errno)) return;  // the directory's lock stands alone, as where the file system has none
  throw Error(ErrorCode::busy, "another run holds this file of the store, although not its directory", path.string(),
              "wait until it ends or stop it; two runs need two stores");
}

}  // namespace strata::tiers
