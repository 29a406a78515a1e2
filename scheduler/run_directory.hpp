// The directory of a run: new, empty or marked as a run's. Anything else is refused before anything is written to it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/config.hpp"

namespace strata::scheduler {

/// Looks at the run directory, and makes it (mode 0700) when it is absent. Until keep() is called, its end removes the directory again
/// if this made it and nothing but the lock file and the marker is in it: a refused run leaves nothing behind.
class RunDirectory {
 public:
  /// Accepted are a directory with a marker, what a version without markers left of a run, and an empty one; directories of the
  /// configuration's store, the lock file and files that the process's own output goes to do not count. Throws
  /// invalid_configuration that says what is there, io.
  RunDirectory(const std::filesystem::path& path, const Config& config);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;
  void keep() { made_ = false; }
  /// What is worth saying about it, a sentence each.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  const std::filesystem::path path_;
  bool made_ = false;
  std::vector<std::string> notes_;
};

/// Whether a name in a run directory is one that a run gives to a file or directory of its own there.
bool is_run_file_name(const std::string& name);

}  // namespace strata::scheduler
