#include "scheduler/trainer_files.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "core/config.hpp"
#include "core/error.hpp"
#include "scheduler/checkpoint.hpp"
#include "scheduler/run_marker.hpp"
#include "scheduler/run_store.hpp"
#include "scheduler/session_record.hpp"
#include "tiers/file.hpp"
#include "tiers/layout.hpp"

namespace strata::scheduler {

namespace {

namespace fs = std::filesystem;

uint64_t bytes_below(const fs::path& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (at->is_regular_file(error)) bytes += at->file_size(error);
  return bytes;
}

/// Checkpoints that the run will write from a step on, the last one included.
int64_t checkpoints_to_come(const Config& config, int64_t step) {
  if (config.checkpoint.every == 0 || step >= config.steps) return 1;
  return (config.steps - 1) / config.checkpoint.every - step / config.checkpoint.every + 1;
}

uint64_t device_of(fs::path path) {
  struct stat status {};
  path = fs::absolute(path);
  while (stat(path.c_str(), &status) != 0 && path.has_relative_path()) path = path.parent_path();
  return status.st_dev;
}

/// What the run's store, which is still to be made, takes of the same disk. Nothing where it alone has checkpoints that weigh anything: then
/// making the store says what it lacks.
uint64_t bytes_of_new_store(const RunPlan& plan, const fs::path& place) {
  if (!plan.placement.all_state_in_store() || checkpoints_kept(plan) == 1) return 0;
  const tiers::StoreOptions options = plan.store_options();
  const tiers::StoreLayout layout = tiers::lay_out(options);
  uint64_t bytes = 0;
  for (size_t i = 0; i < options.directories.size(); ++i)
    if (device_of(options.directories[i].path) == device_of(place))
      bytes += layout.directory_bytes(i) - std::min(layout.directory_bytes(i), bytes_below(options.directories[i].path));
  return bytes;
}

void check_free_space(const fs::path& run_directory, const RunPlan& plan, RunStart start) {
  std::error_code error;
  const fs::path folder = run_directory / "checkpoints";
  const fs::path place = fs::exists(folder, error) ? folder : run_directory;
  const fs::space_info space = fs::space(place, error);
  if (error) return;
  const bool store = plan.placement.all_state_in_store();
  const int64_t keep = checkpoints_kept(plan), limit = store ? keep - 1 : keep;
  int64_t there = 0;
  if (start.resume)
    for (const CheckpointInfo& info : list_checkpoints(folder, nullptr)) there += !store || info.copy;
  // Of a store, the last checkpoint is no copy, and the one that the run continues from becomes one.
  const int64_t to_come = checkpoints_to_come(plan.config, start.step) - (store && start.step == 0);
  // An older one goes only when the newer one is whole.
  const int64_t at_once = std::min(there + to_come - 1, limit) + 1;
  const int64_t count = store && (limit == 0 || to_come == 0) ? 1 : std::max<int64_t>(at_once - there, 1);
  const uint64_t each = checkpoint_bytes(plan, store && limit > 0 && to_come > 0);
  const uint64_t needed = static_cast<uint64_t>(count) * each + (start.step == 0 ? bytes_of_new_store(plan, place) : 0);
  const uint64_t available = space.available + (start.resume ? 0 : bytes_below(folder));
  if (needed <= available) return;
  throw Error(ErrorCode::resource_exhausted,
              fmt::format("the disk has too little room for the run's checkpoints: {} of {} at once need {} ({} bytes), free are {} "
                          "({} bytes)",
                          count, format_bytes(each), format_bytes(needed), needed, format_bytes(available), available),
              place.string(), "free space there, lower checkpoint.keep, or choose another --run-dir");
}

}  // namespace

void check_run_names(const fs::path& run_directory) {
  const tiers::FileDescriptor directory = tiers::open_directory(run_directory);
  for (const char* name : {kMarkerName, kSessionName, kRunStoreName, "config.json", "plan.json", "metrics.jsonl", "trace.json"}) {
    try {
      tiers::open_file(directory.get(), name, tiers::Access::read_write, run_directory);
    } catch (const Error& error) {
      throw Error(ErrorCode::io, fmt::format("the run writes a file of this name, and cannot: {}", error.message()), error.where(),
                  "move it away or choose another --run-dir");
    }
  }
  std::error_code error;
  const fs::path folder = run_directory / "checkpoints";
  if (!fs::exists(fs::symlink_status(folder, error))) return;
  if (!fs::is_directory(folder, error))
    throw Error(ErrorCode::io, "the run makes a directory of this name, and something else has it", folder.string(),
                "move it away or choose another --run-dir");
  if (access(folder.c_str(), W_OK | X_OK) != 0)
    throw Error(ErrorCode::io, fmt::format("checkpoints cannot be written there: {}", system_reason(errno)), folder.string(),
                "make it writable or choose another --run-dir");
}

void check_run_files(const fs::path& run_directory, const RunPlan& plan, RunStart start) {
  check_free_space(run_directory, plan, start);
}

}  // namespace strata::scheduler
