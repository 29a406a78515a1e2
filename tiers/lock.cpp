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

constexpr int kAttempts = 6;
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

bool acquire(int file, int how) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(kPause);
    if (flock(file, how | LOCK_NB) == 0) return true;
    if (errno != EWOULDBLOCK && errno != EINTR) break;
  }
  return false;
}

}  // namespace

DirectoryLock::DirectoryLock(int directory, const std::filesystem::path& directory_path, Kind kind) {
  const auto path = directory_path / kLockFileName;
  const bool run = kind == Kind::run;
  file_ = FileDescriptor(openat(directory, kLockFileName, (run ? O_RDWR | O_CREAT : O_RDONLY) | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file_) {
    if (!run && errno == ENOENT) {
      throw Error(ErrorCode::invalid_data, "no store has been made in this directory", directory_path.string(),
                  "give the directory of a run's NVMe tier");
    }
    throw system_error(errno, "open the lock file", path);
  }
  struct stat status {};
  if (fstat(file_.get(), &status) != 0) throw system_error(errno, "examine the lock file", path);
  if (!S_ISREG(status.st_mode) || (status.st_uid != geteuid() && geteuid() != 0)) {
    throw Error(ErrorCode::io, "the lock file belongs to another user or is no regular file", path.string(),
                "use a directory of your own");
  }
  if (acquire(file_.get(), run ? LOCK_EX : LOCK_SH)) {
    if (!run) return;
    fchmod(file_.get(), 0600);
    const std::string text = this_process() + "\n";
    if (ftruncate(file_.get(), 0) != 0) throw system_error(errno, "write the lock file", path);
    write_exactly(file_.get(), text.data(), text.size(), 0, path);
    return;
  }
  if (errno != EWOULDBLOCK && errno != EINTR) throw system_error(errno, "lock the lock file", path);
  // A run that is refused although readers could come in is refused because of readers.
  if (run && flock(file_.get(), LOCK_SH | LOCK_NB) == 0) {
    throw Error(ErrorCode::busy, "it is being read by another process (an export or a verification)",
                directory_path.string(), "wait until it ends");
  }
  const std::string holder = holder_of(file_.get());
  throw Error(ErrorCode::busy, fmt::format("another run holds this directory: {}", holder.empty() ? "an unnamed process" : holder),
              directory_path.string(), "wait until it ends or stop it; two runs need two directories");
}

}  // namespace strata::tiers
