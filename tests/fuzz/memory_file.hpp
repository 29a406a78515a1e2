// A file that holds a fuzzer's input in memory, so that parsers of files run at memory speed.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace strata {

class MemoryFile {
 public:
  MemoryFile(const uint8_t* data, size_t size) : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (descriptor_ < 0) std::abort();
    for (size_t done = 0; done < size;) {
      const ssize_t put = ::write(descriptor_, data + done, size - done);
      if (put <= 0) std::abort();
      done += static_cast<size_t>(put);
    }
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { ::close(descriptor_); }

  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace strata
