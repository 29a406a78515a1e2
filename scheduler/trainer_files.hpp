// The run directory before the run: what could only fail at the end of it is refused at its start.
#pragma once

#include <cstdint>
#include <filesystem>

#include "scheduler/run_plan.hpp"

namespace strata::scheduler {

/// Makes the run directory. Until keep() is called, its end removes the directory again if this made it and nothing but the lock file
/// and the marker is in it: a refused run leaves nothing behind.
class RunDirectory {
 public:
  /// Throws io.
  explicit RunDirectory(const std::filesystem::path& path);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;
  void keep() { made_ = false; }

 private:
  const std::filesystem::path path_;
  bool made_ = false;
};

/// Where a run starts.
struct RunStart {
  int64_t step = 0;
  bool resume = true;  // otherwise an earlier run's checkpoints go first
};

/// Throws io when one of the run's files or its checkpoints/ cannot be written because something else has the name, and
/// resource_exhausted, with needed and free bytes, when the disk has no room for the checkpoints that the run will have there at once.
void check_run_files(const std::filesystem::path& run_directory, const RunPlan& plan, RunStart start);

}  // namespace strata::scheduler
