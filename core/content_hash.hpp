// The identity of content: XXH3-128 as 32 lower-case hex digits, of bytes, of a file, or of a sample of a large file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/file.hpp"

namespace strata {

/// Told the bytes of each piece of a long scan when it was read. What it throws ends the scan.
using OnRead = std::function<void(uint64_t bytes)>;

/// XXH3-128 of bytes that come in pieces. The pieces' borders do not change the hash. Not thread-safe.
class ContentHash {
 public:
  ContentHash();
  ~ContentHash();
  ContentHash(const ContentHash&) = delete;
  ContentHash& operator=(const ContentHash&) = delete;

  void add(const void* data, uint64_t bytes);
  /// Of everything added so far.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string hash_text(std::string_view text);

/// Of a file's whole content. Blocks; reads in pieces and drops them from the page cache.
/// Throws io, or invalid_data if the file becomes shorter meanwhile.
std::string hash_file(const std::filesystem::path& file, const OnRead& on_read = {});

/// A file of at most this size is sampled whole.
inline constexpr uint64_t kSampledWholeBytes = 6ull << 20;

/// The identity of a large file in the time of a few megabytes: XXH3-128 of its size (u64, little-endian), its first MiB,
/// 64 pieces of 64 KiB, and its last MiB; of its size and all of it up to kSampledWholeBytes. The pieces lie one in each
/// 64th of what is between, at places that depend on the size alone. Two files of one size that differ in the ends or in a
/// piece have different hashes; a change that is smaller than the gaps between the pieces can go unseen: that needs
/// hash_file(). Blocks. Throws io, or invalid_data if the file becomes shorter meanwhile.
std::string sampled_hash(const ReadOnlyFile& file);
std::string sampled_hash(const std::filesystem::path& file);

}  // namespace strata
