// The simulator: runs a step program against measured rates instead of a machine, and says how long it takes and what bounds it.
#pragma once

#include <array>
#include <filesystem>
#include <string>

#include "scheduler/step_program.hpp"

namespace strata::scheduler {

/// What a machine does per second. The defaults are those of a two-core workstation with one NVMe drive; they only rank placements.
struct MachineRates {
  double compute_flops = 300e9;
  double h2d_bytes = 12e9;
  double d2h_bytes = 12e9;
  double update_bytes = 50e9;  // read and written by Adam
  double nvme_read_bytes = 3e9;
  double nvme_write_bytes = 2.5e9;
  double operation_seconds = 20e-6;  // of any operation, besides its work

  double rate(Resource resource) const;
};

/// Reads a file of {"compute_flops": ..., "h2d_bytes": ..., ...} (per second); keys that are absent keep their default. Throws
/// invalid_configuration for anything else.
MachineRates read_machine_rates(const std::filesystem::path& file);

struct SimulatedRun {
  double seconds = 0;
  std::array<double, kResourceCount> busy_seconds{};
  /// The resource that is busy longest.
  Resource limit = Resource::compute;
};

SimulatedRun simulate(const Program& program, const MachineRates& rates);

}  // namespace strata::scheduler
