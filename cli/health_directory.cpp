// A directory that is meant for the NVMe tier, tried out with the same files and I/O that the store would use.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <sstream>
#include <system_error>

#include "cli/health.hpp"
#include "cli/run_files.hpp"
#include "core/config.hpp"
#include "core/error.hpp"
#include "tiers/file.hpp"
#include "tiers/transfer.hpp"

namespace strata::cli {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kProbeBytes = 1 << 20;

struct Mount {
  std::string type = "unknown", source;
};

/// The file system that holds the path, from /proc/self/mountinfo: that of its device, or, where the file system has devices of its
/// own (btrfs), the one mounted nearest above it.
Mount mount_of(dev_t device, const fs::path& path) {
  const std::string wanted = fmt::format("{}:{}", major(device), minor(device));
  std::error_code error;
  const std::string place = fs::canonical(path, error).string() + "/";
  Mount nearest;
  size_t nearest_length = 0;
  std::ifstream in("/proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    // "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue"
    std::istringstream words(line);
    std::string id, parent, numbers, root, point, word;
    words >> id >> parent >> numbers >> root >> point;
    while (words >> word && word != "-") {
    }
    Mount mount;
    if (!(words >> mount.type >> mount.source)) continue;
    if (numbers == wanted) return mount;
    if (point.size() < nearest_length || !place.starts_with(point == "/" ? point : point + "/")) continue;
    nearest = mount;
    nearest_length = point.size();
  }
  return nearest;
}

std::string first_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

/// "1" for a drive with moving parts, "0" for one without, empty where the system does not say. Partitions ask their drive.
std::string rotational(dev_t device) {
  const fs::path block = fmt::format("/sys/dev/block/{}:{}", major(device), minor(device));
  const std::string own = first_line(block / "queue/rotational");
  return own.empty() ? first_line(block / "../queue/rotational") : own;
}

/// Virtual drives say that they turn when nobody told them otherwise.
bool is_virtual(const std::string& source) { return source.starts_with("/dev/vd") || source.starts_with("/dev/xvd"); }

Check file_system_check(dev_t device, const fs::path& path) {
  const Mount mount = mount_of(device, path);
  Check check{"file system", Health::ok, mount.type + (mount.source.empty() ? "" : " on " + mount.source)};
  const auto note = [&](const std::string& text, const std::string& remedy) {
    check.health = Health::note;
    check.finding += ": " + text;
    check.remedy = remedy;
  };
  if (mount.type == "tmpfs" || mount.type == "ramfs")
    note("its files lie in memory, so this tier would take from the host tier", "a directory on a drive");
  else if (mount.type.starts_with("nfs") || mount.type.starts_with("fuse") || mount.type == "cifs" || mount.type == "smb3" ||
           mount.type == "9p" || mount.type == "ceph" || mount.type == "lustre")
    note("it is a network or user-space file system: slow, and locks may not hold between machines", "a directory on a local drive");
  else if (mount.type == "overlay")
    note("it is a container's layer", "mount a directory of a drive into the container (docker run -v)");
  else if (mount.type == "btrfs")
    note("it keeps checksums of its own and copies on write", "chattr +C on the empty directory");
  else if (rotational(device) == "1" && !is_virtual(mount.source))
    note("the drive has moving parts: far below the rates that training needs", "a solid-state drive");
  return check;
}

Check space_check(int directory, const fs::path& path) {
  struct statvfs status {};
  if (fstatvfs(directory, &status) != 0) throw tiers::system_error(errno, "ask for free space", path);
  const uint64_t block = status.f_frsize;
  return {"space", Health::ok, fmt::format("{} free of {}", format_bytes(status.f_bavail * block), format_bytes(status.f_blocks * block))};
}

Check permission_check(int directory, const fs::path& path) {
  struct stat status {};
  if (fstat(directory, &status) != 0) throw tiers::system_error(errno, "examine the directory", path);
  Check check{"permissions", Health::ok, fmt::format("mode {:04o}", status.st_mode & 07777)};
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0 && (status.st_mode & S_ISVTX) == 0) {
    check.health = Health::missing;
    check.finding += ": other users may write to it, so the store refuses it";
    check.remedy = "chmod go-w, or a subdirectory";
  }
  return check;
}

Check reservation_check(int file, const fs::path& path) {
  if (tiers::preallocate(file, kProbeBytes, path)) return {"reservation", Health::ok, "space can be reserved (fallocate)"};
  return {"reservation", Health::note, "the file system cannot reserve space: a full disk would be found during the run",
          "ext4 or XFS"};
}

/// Two openings of one file must exclude each other.
Check lock_check(int file) {
  const tiers::FileDescriptor other(open(fmt::format("/proc/self/fd/{}", file).c_str(), O_RDWR | O_CLOEXEC));
  if (flock(file, LOCK_EX | LOCK_NB) != 0)
    return {"locks", Health::missing, "a lock was refused: " + system_reason(errno), "a local file system, or mount with locks"};
  if (!other) return {"locks", Health::ok, "a lock can be taken"};
  if (flock(other.get(), LOCK_EX | LOCK_NB) == 0)
    return {"locks", Health::missing, "locks do not exclude: two runs could use the directory at once", "a local file system"};
  return {"locks", Health::ok, "a lock keeps a second run out"};
}

/// Writes, makes durable and reads back, through the engine that a run would get.
Check round_trip_check(int file, const tiers::DirectIo& direct) {
  const auto written = std::make_shared<tiers::AlignedBuffer>(kProbeBytes), read = std::make_shared<tiers::AlignedBuffer>(kProbeBytes);
  for (uint64_t i = 0; i < kProbeBytes; ++i) written->data()[i] = static_cast<std::byte>(i * 2654435761u >> 24);
  tiers::TransferOptions options;
  options.regions = {{written->data(), written->bytes()}, {read->data(), read->bytes()}};
  options.request_deadline = options.sync_deadline = std::chrono::seconds(30);
  tiers::TransferChannel channel({{file, "(probe)", direct.on ? direct.alignment_bytes : 1}}, options);
  const auto move = [&](tiers::IoOperation operation, const std::shared_ptr<tiers::AlignedBuffer>& buffer) {
    tiers::Transfer transfer;
    transfer.operation = operation;
    transfer.length_bytes = operation == tiers::IoOperation::sync ? 0 : kProbeBytes;
    transfer.buffer = buffer ? buffer->data() : nullptr;
    transfer.label = "probe";
    channel.run(std::move(transfer), buffer);
  };
  move(tiers::IoOperation::write, written);
  move(tiers::IoOperation::sync, nullptr);
  move(tiers::IoOperation::read, read);
  if (std::memcmp(written->data(), read->data(), kProbeBytes) != 0)
    return {"round trip", Health::missing, "what was read is not what was written", "do not use this directory; check the drive"};
  return {"round trip", Health::ok, fmt::format("{} written, made durable and read back with {}", format_bytes(kProbeBytes),
                                                channel.engine_description())};
}

/// What a run or an earlier store has there.
void add_occupants(const fs::path& directory, std::vector<Check>& checks) {
  if (const auto holder = lock_holder(directory))
    checks.push_back({"in use", Health::note, "a run holds this directory: " + *holder, "another directory for another run"});
  try {
    if (const auto view = view_store(directory))
      checks.push_back({"store", Health::note,
                        fmt::format("a store of {} at generation {} is there: a new run of another model would replace it",
                                    format_bytes(view->bytes_on_disk()), view->record.generation),
                        "strata inspect tells whose it is"});
  } catch (const Error& error) {
    checks.push_back({"store", Health::note, "there is a store, but " + error.message(), "strata inspect and strata verify"});
  }
}

}  // namespace

std::vector<Check> check_directory(const fs::path& directory) {
  std::vector<Check> checks;
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    const bool there = fs::exists(directory, error);
    return {{"directory", Health::missing, there ? "it is not a directory" : "there is no such directory",
             there ? "name a directory" : "mkdir -p it, or mount the drive"}};
  }
  try {
    const tiers::FileDescriptor handle = tiers::open_directory(directory);
    struct stat status {};
    if (fstat(handle.get(), &status) != 0) throw tiers::system_error(errno, "examine the directory", directory);
    checks.push_back(file_system_check(status.st_dev, directory));
    checks.push_back(space_check(handle.get(), directory));
    checks.push_back(permission_check(handle.get(), directory));
    add_occupants(directory, checks);
    const tiers::FileDescriptor file = tiers::make_anonymous_file(handle.get(), directory);
    checks.push_back(reservation_check(file.get(), directory));
    checks.push_back(lock_check(file.get()));
    const tiers::DirectIo direct = tiers::enable_direct_io(file.get());
    checks.push_back(direct.on ? Check{"direct I/O", Health::ok, fmt::format("O_DIRECT with blocks of {} bytes", direct.alignment_bytes)}
                               : Check{"direct I/O", Health::note, "buffered: " + direct.reason,
                                       "ext4 or XFS on a local drive; without it every byte also passes the page cache"});
    checks.push_back(round_trip_check(file.get(), direct));
  } catch (const Error& problem) {
    checks.push_back({"files", Health::missing, problem.message(), problem.remedy()});
  }
  return checks;
}

}  // namespace strata::cli
