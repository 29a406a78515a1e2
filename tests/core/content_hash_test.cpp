#include "core/content_hash.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

#include "core/error.hpp"
#include "tests/support/files.hpp"
#include "tests/support/scratch_directory.hpp"

namespace strata {
namespace {

constexpr uint64_t kMiB = 1ull << 20;

/// A file of zeros that takes no space.
void make_sparse(const std::filesystem::path& path, uint64_t bytes) {
  write_file(path, "");
  std::filesystem::resize_file(path, bytes);
}

TEST(ContentHash, IsTheXxh3Of128BitsAsItsReferenceProgramPrintsIt) {
  // `printf abc | xxhsum -H2`, and of nothing.
  EXPECT_EQ(hash_text("abc"), "06b05ab6733a618578af5f94892f3950");
  EXPECT_EQ(hash_text(""), "99aa06d3014798d86001c324468d497f");
}

TEST(ContentHash, DoesNotDependOnHowTheBytesAreCut) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * 7);
  ContentHash hash;
  for (size_t begin = 0, piece = 1; begin < text.size(); begin += piece++)
    hash.add(text.data() + begin, std::min(piece, text.size() - begin));
  EXPECT_EQ(hash.hex(), hash_text(text));
}

TEST(ContentHash, AFileIsHashedWholeAndItsProgressIsTold) {
  const ScratchDirectory directory;
  const std::string text(9 * kMiB + 5, 'x');
  write_file(directory / "f", text);
  uint64_t told = 0;
  EXPECT_EQ(hash_file(directory / "f", [&](uint64_t bytes) { told += bytes; }), hash_text(text));
  EXPECT_EQ(told, text.size());
  write_file(directory / "empty", "");
  EXPECT_EQ(hash_file(directory / "empty"), hash_text(""));
}

TEST(ContentHash, WhatTheListenerThrowsEndsTheScan) {
  const ScratchDirectory directory;
  make_sparse(directory / "f", 1ull << 36);
  const auto give_up = [](uint64_t) { throw Error(ErrorCode::cancelled, "enough"); };
  EXPECT_THROW(hash_file(directory / "f", give_up), Error);
}

TEST(SampledHash, IsKnownForEverSoThatARunCanBeRecognizedByIt) {
  const ScratchDirectory directory;
  write_file(directory / "small", "abc");
  std::string numbers(7 * kMiB + 3, '\0');  // every 4 bytes their own place, so that each piece has its own content
  for (uint32_t i = 0; i < numbers.size() / 4; ++i) std::memcpy(numbers.data() + 4 * i, &i, 4);
  write_file(directory / "large", numbers);
  EXPECT_EQ(sampled_hash(directory / "small"), hash_text(std::string("\3\0\0\0\0\0\0\0abc", 11)));
  EXPECT_EQ(sampled_hash(directory / "large"), "51a4d893e01613a787a36b84807a7623");
}

TEST(SampledHash, SeesEveryBitOfASmallFile) {
  const ScratchDirectory directory;
  std::set<std::string> seen;
  for (const uint64_t size : {uint64_t{0}, uint64_t{1}, uint64_t{2}, kSampledWholeBytes - 1, kSampledWholeBytes}) {
    make_sparse(directory / "f", size);
    EXPECT_TRUE(seen.insert(sampled_hash(directory / "f")).second) << size;
    for (const uint64_t offset : {uint64_t{0}, size / 3, size / 2, size - 1}) {
      if (offset >= size) continue;
      flip_bit(directory / "f", offset);
      const std::string changed = sampled_hash(directory / "f");
      flip_bit(directory / "f", offset);
      EXPECT_NE(changed, sampled_hash(directory / "f")) << size << " at " << offset;
    }
  }
}

TEST(SampledHash, SeesTheSizeTheEndsAndAChangeThatIsSpreadOverALargeFile) {
  const ScratchDirectory directory;
  constexpr uint64_t kSize = (64ull << 30) + 12345;
  make_sparse(directory / "f", kSize);
  const std::string before = sampled_hash(directory / "f");
  EXPECT_EQ(before, sampled_hash(directory / "f"));
  for (const uint64_t offset : {uint64_t{0}, kMiB - 1, kSize - kMiB, kSize - 1}) {
    flip_bit(directory / "f", offset);
    EXPECT_NE(sampled_hash(directory / "f"), before) << offset;
    flip_bit(directory / "f", offset);
  }
  std::filesystem::resize_file(directory / "f", kSize + 1);
  EXPECT_NE(sampled_hash(directory / "f"), before);
}

TEST(SampledHash, EveryPieceOfAMiddlingFileLiesInAStretchOfItsOwn) {
  // When all of one stretch changes, its piece sees it, whichever place it has there.
  const ScratchDirectory directory;
  constexpr uint64_t kSize = 34 * kMiB, kStretch = (kSize - 2 * kMiB) / 64;
  make_sparse(directory / "f", kSize);
  const std::string before = sampled_hash(directory / "f");
  std::set<std::string> seen{before};
  for (uint64_t stretch = 0; stretch < 64; ++stretch) {
    make_sparse(directory / "f", kSize);
    const int file = ::open((directory / "f").c_str(), O_WRONLY | O_CLOEXEC);
    ASSERT_GE(file, 0);
    const std::string changed(kStretch, 'x');
    ASSERT_EQ(::pwrite(file, changed.data(), changed.size(), static_cast<off_t>(kMiB + stretch * kStretch)),
              static_cast<ssize_t>(changed.size()));
    ::close(file);
    EXPECT_TRUE(seen.insert(sampled_hash(directory / "f")).second) << stretch;
  }
}

TEST(SampledHash, AFileThatIsNotThereOrBecameShorterIsAnError) {
  const ScratchDirectory directory;
  EXPECT_THROW(sampled_hash(directory / "absent"), Error);
  make_sparse(directory / "f", 32 * kMiB);
  const ReadOnlyFile file(directory / "f");
  std::filesystem::resize_file(directory / "f", 16 * kMiB);
  EXPECT_THROW(sampled_hash(file), Error);
}

}  // namespace
}  // namespace strata
