#include "scheduler/checkpoint_directory.hpp"

#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <vector>

#include "core/error.hpp"
#include "core/file.hpp"
#include "scheduler/checkpoint.hpp"

namespace strata::scheduler {

namespace {

namespace fs = std::filesystem;

fs::path with_suffix(const fs::path& path, const char* suffix) { return path.string() + suffix; }

void rename_directory(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    throw Error(ErrorCode::io, fmt::format("cannot rename to {}: {}", to.filename().string(), system_reason(errno)), from.string(),
                "check that the directory can be written");
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw Error(ErrorCode::io, fmt::format("cannot remove: {}", error.message()), path.string());
}

/// False where the file system or the kernel has no exchange.
bool exchange_names(const fs::path& a, const fs::path& b) {
  if (syscall(SYS_renameat2, AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == EPERM || errno == ENOTSUP) return false;
  throw Error(ErrorCode::io, fmt::format("cannot exchange it with {}: {}", b.filename().string(), system_reason(errno)), a.string());
}

bool is_whole(const fs::path& checkpoint) {
  try {
    read_checkpoint_info(checkpoint);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::string checkpoint_name(int64_t step) { return fmt::format("step-{:08}", step); }

void publish_checkpoint(const fs::path& partial, const fs::path& final_path, Exchange exchange) {
  const fs::path folder = final_path.parent_path();
  std::error_code error;
  if (!fs::exists(fs::symlink_status(final_path, error))) {
    rename_directory(partial, final_path);
    sync_directory(folder);
    return;
  }
  sync_directory(folder);  // the new one is found under its partial name from here on
  if (exchange == Exchange::automatic && exchange_names(partial, final_path)) {
    sync_directory(folder);
    remove_checkpoint(partial);  // which the old one is now
    return;
  }
  const fs::path removed = with_suffix(final_path, kRemovedSuffix);
  remove_tree(removed);
  rename_directory(final_path, removed);
  rename_directory(partial, final_path);
  sync_directory(folder);
  remove_tree(removed);
}

void remove_checkpoint(const fs::path& checkpoint) {
  const fs::path removed = with_suffix(checkpoint, kRemovedSuffix);
  remove_tree(removed);
  rename_directory(checkpoint, removed);
  remove_tree(removed);
}

void settle_checkpoints(const fs::path& folder, const std::function<void(const std::string&)>& narrate) {
  std::error_code error;
  std::vector<fs::path> partial;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == kRemovedSuffix) remove_tree(entry.path());
    if (entry.path().extension() == kPartialSuffix) partial.push_back(entry.path());
  }
  for (const fs::path& path : partial) {
    const fs::path final_path = fs::path(path).replace_extension();
    if (is_whole(path) && !is_whole(final_path)) {
      publish_checkpoint(path, final_path);
      if (narrate) narrate(fmt::format("a checkpoint was whole when its process ended, and has its name now: {}", final_path.string()));
    } else {
      remove_checkpoint(path);
    }
  }
}

void pin_checkpoint(const fs::path& checkpoint) { write_file_atomically(checkpoint / kPinnedName, "", 0); }

void unpin_checkpoint(const fs::path& checkpoint) {
  std::error_code error;
  fs::remove(checkpoint / kPinnedName, error);
  if (error) throw Error(ErrorCode::io, fmt::format("cannot unpin: {}", error.message()), checkpoint.string());
  sync_directory(checkpoint);
}

bool is_pinned(const fs::path& checkpoint) {
  std::error_code error;
  return fs::exists(checkpoint / kPinnedName, error);
}

}  // namespace strata::scheduler
