// run.json: marks a directory as a run's and names the run. The format is described in docs/formats.md.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace strata::scheduler {

inline constexpr const char* kMarkerName = "run.json";

/// Written before anything else of a run, and carried by its checkpoints and by every commit of its store: it tells a run that was
/// moved from another one.
struct RunMarker {
  std::string run_id;  // 128 random bits, hex

  /// A marker with a new id. Throws io.
  static RunMarker make();
  /// Absent when the directory has none. Throws data_corruption when it is damaged or of another program, io.
  static std::optional<RunMarker> read(const std::filesystem::path& run_directory);
  /// Durable when it returns; an earlier one is replaced. Throws io, resource_exhausted.
  void write(const std::filesystem::path& run_directory) const;
};

}  // namespace strata::scheduler
