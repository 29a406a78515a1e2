// The lock that keeps two runs out of one store directory.
#pragma once

#include <filesystem>
#include <string>

#include "tiers/file.hpp"

namespace strata::tiers {

/// Held until destruction, and given back by the kernel however the process ends. The file stays: removing it would let two runs hold
/// two different locks.
class DirectoryLock {
 public:
  enum class Kind { run, reader };
  /// Tries for a quarter of a second, because the kernel can keep the descriptor of a killed process for a moment. Throws busy,
  /// naming the process and host that the lock file names.
  DirectoryLock(int directory, const std::filesystem::path& directory_path, Kind kind);

 private:
  FileDescriptor file_;
};

inline constexpr const char* kLockFileName = "strata.lock";

}  // namespace strata::tiers
