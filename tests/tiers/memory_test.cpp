#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "tiers/memory.hpp"

namespace strata::tiers {
namespace {

using ::testing::HasSubstr;

/// A device that remembers what is registered and refuses after a number of registrations.
class RegisteringDevice final : public gpu::Device {
 public:
  struct Piece {
    std::byte* data;
    uint64_t bytes;
  };
  std::vector<Piece> pieces;
  int allowed = 1000;

  void register_host_memory(void* data, uint64_t bytes) override {
    if (--allowed < 0) throw Error(ErrorCode::resource_exhausted, "no more pinned memory");
    pieces.push_back({static_cast<std::byte*>(data), bytes});
  }
  void unregister_host_memory(void* data) override {
    std::erase_if(pieces, [&](const Piece& piece) { return piece.data == data; });
  }

  const gpu::DeviceInfo& info() const override { return info_; }
  gpu::DeviceBuffer allocate(uint64_t) override { return {}; }
  uint64_t allocated_bytes() const override { return 0; }
  std::unique_ptr<gpu::Stream> create_stream(StreamKind, std::string) override { return nullptr; }
  std::unique_ptr<gpu::Event> create_event() override { return nullptr; }
  void record(gpu::Stream&, gpu::Event&) override {}
  void wait(gpu::Stream&, const gpu::Event&) override {}
  void synchronize(const gpu::Event&, std::chrono::milliseconds) override {}
  void synchronize(gpu::Stream&, std::chrono::milliseconds) override {}
  gpu::DeviceActivity activity() const override { return {}; }
  void copy(gpu::Stream&, void*, const void*, uint64_t, gpu::CopyDirection) override {}
  void fill(gpu::Stream&, void*, uint8_t, uint64_t) override {}
  void call_host(gpu::Stream&, std::function<void()>) override {}
  gpu::RowKernels& rows() override { throw Error(ErrorCode::unsupported, "no kernels"); }
  gpu::MatrixKernels& matrices() override { throw Error(ErrorCode::unsupported, "no kernels"); }
  gpu::AttentionKernels& attention() override { throw Error(ErrorCode::unsupported, "no kernels"); }

 private:
  gpu::DeviceInfo info_;
};

TEST(MemorySlab, IsAlignedZeroedAndOfTheExactSize) {
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{4096}, uint64_t{5000}, (uint64_t{2} << 20) + 1, uint64_t{33} << 20}) {
    const MemorySlab slab(bytes);
    EXPECT_EQ(slab.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(slab.data()) % MemorySlab::kAlignBytes, 0u);
    EXPECT_TRUE(std::all_of(slab.data(), slab.data() + bytes, [](std::byte byte) { return byte == std::byte{0}; })) << bytes;
    std::fill(slab.data(), slab.data() + bytes, std::byte{0x5a});
  }
}

TEST(MemorySlab, OfNoBytesIsNothing) {
  const MemorySlab slab(0);
  EXPECT_EQ(slab.data(), nullptr);
  EXPECT_EQ(slab.bytes(), 0u);
}

TEST(MemorySlab, HasEveryPageWhenItIsMade) {
  constexpr uint64_t kBytes = (uint64_t{9} << 20) + 4096;
  const MemorySlab slab(kBytes);
  std::vector<unsigned char> present(kBytes / 4096);
  ASSERT_EQ(mincore(slab.data(), kBytes, present.data()), 0);
  EXPECT_TRUE(std::all_of(present.begin(), present.end(), [](unsigned char page) { return (page & 1) != 0; }));
}

TEST(MemorySlab, StaysOnSmallPagesWhenAsked) {
  const MemorySlab slab(8u << 20, nullptr, {.huge_pages = Wish::off});
  EXPECT_THAT(slab.description(), HasSubstr("8 MiB"));
  const MemorySlab huge(8u << 20);
  std::cout << huge.description() << "\n";
  EXPECT_GE(huge.huge_page_bytes(), slab.huge_page_bytes());
}

TEST(MemorySlab, ReturnsEverythingAtItsEnd) {
  const auto mappings = [] {
    std::ifstream maps("/proc/self/maps");
    return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
  };
  { const MemorySlab warm(4u << 20); }
  const auto before = mappings();
  for (int i = 0; i < 20; ++i) const MemorySlab slab((4u << 20) + 4096 * static_cast<uint64_t>(i));
  EXPECT_LE(mappings(), before + 1);
}

TEST(MemorySlab, RegistersInBoundedPiecesAndUnregistersThem) {
  RegisteringDevice device;
  {
    const MemorySlab slab((5u << 20) + 1, &device, {.registration_piece_bytes = 2u << 20});
    EXPECT_TRUE(slab.registered());
    ASSERT_EQ(device.pieces.size(), 3u);
    uint64_t covered = 0;
    for (const auto& piece : device.pieces) {
      EXPECT_EQ(piece.data, slab.data() + covered);
      covered += piece.bytes;
    }
    EXPECT_EQ(covered, (5u << 20) + 4096u);
    EXPECT_THAT(slab.description(), HasSubstr("registered with the device in 3 pieces"));
  }
  EXPECT_TRUE(device.pieces.empty());
}

TEST(MemorySlab, ARefusedRegistrationLeavesPlainMemoryOrIsAnErrorAsAsked) {
  for (int allowed = 0; allowed < 3; ++allowed) {
    RegisteringDevice device;
    device.allowed = allowed;
    const MemorySlab slab(6u << 20, &device, {.registration_piece_bytes = 2u << 20});
    EXPECT_FALSE(slab.registered());
    EXPECT_TRUE(device.pieces.empty()) << "half of a slab registered";
    EXPECT_THAT(slab.description(), HasSubstr("no more pinned memory"));
    device.allowed = allowed;
    EXPECT_THROW(MemorySlab(6u << 20, &device, {.registration = Wish::require, .registration_piece_bytes = 2u << 20}), Error);
    EXPECT_TRUE(device.pieces.empty());
  }
}

TEST(MemorySlab, ARefusedLockIsSaidWithTheRemedy) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizers answer mlock themselves";
#endif
  // In a child that is not root: root may lock without limit.
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{1u << 20, 1u << 20};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || (geteuid() == 0 && setuid(65534) != 0)) _exit(77);
    const MemorySlab slab(8u << 20, nullptr, {.lock = Wish::attempt});
    if (slab.locked() || slab.description().find("1 MiB") == std::string::npos) _exit(1);
    try {
      const MemorySlab required(8u << 20, nullptr, {.lock = Wish::require});
    } catch (const Error& error) {
      _exit(error.code() == ErrorCode::resource_exhausted && error.remedy().find("memlock") != std::string::npos ? 0 : 2);
    }
    _exit(3);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "cannot drop privileges";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(MemorySlab, MoreThanTheAddressSpaceIsRefused) {
  try {
    const MemorySlab slab(uint64_t{1} << 60);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
    EXPECT_THAT(error.remedy(), HasSubstr("tiers.host.memory"));
  }
}

}  // namespace
}  // namespace strata::tiers
