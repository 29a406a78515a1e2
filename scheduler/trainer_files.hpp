// The run directory before the run: what could only fail at the end of it is refused at its start.
#pragma once

#include <cstdint>
#include <filesystem>

#include "scheduler/run_plan.hpp"

namespace strata::scheduler {

/// Where a run starts.
struct RunStart {
  int64_t step = 0;
  bool resume = true;  // otherwise an earlier run's checkpoints go first
};

/// Throws io when one of the run's files or its checkpoints/ cannot be written because something else has the name: a link, a named pipe,
/// a file with a second name.
void check_run_names(const std::filesystem::path& run_directory);

/// Throws resource_exhausted, with needed and free bytes, when the disk has no room for the checkpoints that the run will have there at
/// once.
void check_run_files(const std::filesystem::path& run_directory, const RunPlan& plan, RunStart start);

}  // namespace strata::scheduler
