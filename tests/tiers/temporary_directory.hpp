// A private directory that goes with the test, and helpers that speak of its files.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace strata::tiers::testing {

/// Where the drive is: the system's directory for temporary files. "/dev/shm" gives a file system without direct I/O.
class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
    std::string text = (parent / "strata-test-XXXXXX").string();
    path_ = mkdtemp(text.data()) ? text : std::string();
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void flip_bit(const std::filesystem::path& file, uint64_t offset, int bit = 0) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(offset));
  const char byte = static_cast<char>(stream.get() ^ (1 << bit));
  stream.seekp(static_cast<std::streamoff>(offset));
  stream.put(byte);
}

}  // namespace strata::tiers::testing
