// What the transfer layer makes of raw I/O that goes wrong.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <future>

#include "tests/support/scratch_directory.hpp"
#include "tests/tiers/faulty_io_engine.hpp"
#include "tests/tiers/store_driver.hpp"
#include "tiers/checksum.hpp"
#include "tiers/file.hpp"
#include "tiers/transfer.hpp"

namespace strata::tiers {
namespace {

using testing::Effect;
using testing::error_of;
using testing::Fault;
using testing::FaultPlan;
using testing::pattern;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr uint64_t kFileBytes = 1u << 20;
constexpr uint32_t kChunkBytes = 16'384;

class TransferTest : public ::testing::TestWithParam<IoEngineKind> {
 protected:
  void SetUp() override {
    const auto handle = open_directory(directory_.path());
    file_ = make_file(handle.get(), "file", directory_.path());
    preallocate(file_.get(), kFileBytes, directory_.path());
    alignment_ = enable_direct_io(file_.get()).alignment_bytes;
    options_.engine = GetParam();
    options_.chunk_bytes = kChunkBytes;
    options_.queue_depth = 8;
    options_.shutdown_grace = 200ms;
    try {
      IoEngineConfig config;
      config.kind = GetParam();
      make_io_engine(config);
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
    const auto data = pattern(kFileBytes, 9);
    std::copy(data.begin(), data.end(), buffer_.data());
    TransferChannel({file()}, options_).run(transfer(IoOperation::write, kFileBytes));
    content_ = data;
  }

  TransferFile file() const { return {file_.get(), (directory_.path() / "file").string(), alignment_}; }

  std::unique_ptr<TransferChannel> channel(std::vector<Fault> faults) {
    plan_ = std::make_shared<FaultPlan>(std::move(faults));
    return std::make_unique<TransferChannel>(std::vector{file()}, options_, testing::faulty(plan_));
  }

  Transfer transfer(IoOperation operation, uint64_t bytes, uint64_t offset = 0) {
    Transfer result;
    result.operation = operation;
    result.offset_bytes = offset;
    result.length_bytes = bytes;
    result.buffer = buffer_.data();
    result.checksum_bytes = bytes;
    result.checksum_seed = 42;
    result.label = "the extent";
    return result;
  }

  void spoil_buffer() { std::fill(buffer_.data(), buffer_.data() + buffer_.bytes(), std::byte{0x77}); }

  /// Reads and compares, without faults.
  void expect_on_disk(const std::vector<std::byte>& data) {
    spoil_buffer();
    TransferChannel({file()}, options_).run(transfer(IoOperation::read, round_up(data.size(), kBlockBytes)));
    EXPECT_TRUE(std::equal(data.begin(), data.end(), buffer_.data()));
  }

  ScratchDirectory directory_;
  FileDescriptor file_;
  uint32_t alignment_ = 1;
  TransferOptions options_;
  std::shared_ptr<FaultPlan> plan_;
  AlignedBuffer buffer_{kFileBytes};
  std::vector<std::byte> content_;
};

TEST_P(TransferTest, AShortReadContinuesAtTheRightOffsetWhereverItIsCut) {
  const auto channel = this->channel({});
  for (int64_t cut = 512; cut < kChunkBytes; cut += 512) {
    for (const uint64_t nth : {1, 3}) {
      spoil_buffer();
      plan_->set({{.effect = Effect::short_by, .value = cut, .nth = nth, .operation = {}, .file = {}}});
      const uint64_t checksum = channel->run(transfer(IoOperation::read, 4 * kChunkBytes));
      ASSERT_TRUE(std::equal(buffer_.data(), buffer_.data() + 4 * kChunkBytes, content_.data())) << "cut at " << cut;
      ASSERT_EQ(checksum, checksum_of(content_.data(), 4 * kChunkBytes, 42)) << "cut at " << cut;
      ASSERT_EQ(plan_->injected(), 1u);
    }
  }
  EXPECT_GT(channel->counters().continued, 50u);
}

TEST_P(TransferTest, AShortWriteContinuesAtTheRightOffsetWhereverItIsCut) {
  const auto channel = this->channel({});
  for (int64_t cut = 512; cut < kChunkBytes; cut += 512) {
    const auto data = pattern(3 * kChunkBytes, static_cast<uint64_t>(cut));
    std::copy(data.begin(), data.end(), buffer_.data());
    plan_->set({{.effect = Effect::short_by, .value = cut, .nth = 2, .operation = {}, .file = {}}});
    ASSERT_EQ(channel->run(transfer(IoOperation::write, 3 * kChunkBytes)), checksum_of(data.data(), data.size(), 42));
    ASSERT_EQ(plan_->injected(), 1u);
    spoil_buffer();
    plan_->set({});
    channel->run(transfer(IoOperation::read, 3 * kChunkBytes));
    ASSERT_TRUE(std::equal(data.begin(), data.end(), buffer_.data())) << "cut at " << cut;
  }
}

TEST_P(TransferTest, ACutInsideASectorMovesThatSectorAgain) {
  for (const int64_t cut : {1, 511, 513, 4095, 4097, 16'383}) {
    const auto channel = this->channel({{.effect = Effect::short_by, .value = cut, .nth = 1, .times = 3, .operation = {}, .file = {}}});
    spoil_buffer();
    channel->run(transfer(IoOperation::read, 2 * kChunkBytes));
    ASSERT_TRUE(std::equal(buffer_.data(), buffer_.data() + 2 * kChunkBytes, content_.data())) << "cut at " << cut;
  }
}

TEST_P(TransferTest, EndlessShortTransfersAreGivenUp) {
  options_.queue_depth = 1;
  if (alignment_ == 1) GTEST_SKIP() << "without direct I/O every byte is progress";
  for (const auto operation : {IoOperation::read, IoOperation::write}) {
    const auto channel =
        this->channel({{.effect = Effect::short_by, .value = 100, .nth = 1, .times = 1'000'000, .operation = operation, .file = {}}});
    const auto error = error_of([&] { channel->run(transfer(operation, kChunkBytes)); });
    EXPECT_EQ(error.code(), operation == IoOperation::read ? ErrorCode::data_corruption : ErrorCode::io);
    EXPECT_LT(plan_->requests(), 100u);
  }
}

TEST_P(TransferTest, AReadAtTheEndOfATruncatedFileIsCorruptionNotZeros) {
  const auto channel = this->channel({{.effect = Effect::short_by, .value = 0, .nth = 3, .operation = {}, .file = {}}});
  auto error = error_of([&] { channel->run(transfer(IoOperation::read, 4 * kChunkBytes)); });
  EXPECT_EQ(error.code(), ErrorCode::data_corruption);
  EXPECT_THAT(error.message(), HasSubstr("truncated"));
  for (const off_t length : {0, 5000, 4 * 16'384 - 4096}) {
    ASSERT_EQ(ftruncate(file_.get(), length), 0);
    plan_->set({});
    error = error_of([&] { channel->run(transfer(IoOperation::read, 4 * kChunkBytes)); });
    EXPECT_EQ(error.code(), ErrorCode::data_corruption) << length;
    EXPECT_THAT(error.where(), HasSubstr("the extent"));
  }
}

TEST_P(TransferTest, AnErrorNamesFileOffsetLengthAndReason) {
  const auto channel = this->channel({{.effect = Effect::error, .value = EIO, .nth = 3, .operation = IoOperation::write, .file = {}}});
  const auto error = error_of([&] { channel->run(transfer(IoOperation::write, 4 * kChunkBytes, 65'536)); });
  EXPECT_EQ(error.code(), ErrorCode::io);
  EXPECT_THAT(error.message(), HasSubstr("Input/output error"));
  EXPECT_THAT(error.where(), HasSubstr((directory_.path() / "file").string()));
  EXPECT_THAT(error.where(), HasSubstr(fmt::format("offset {}, length {}", 65'536 + 2 * kChunkBytes, kChunkBytes)));
}

TEST_P(TransferTest, NoSpaceQuotaAndSizeLimitAreExhaustionAndAreNotRetried) {
  for (const int error_number : {ENOSPC, EDQUOT, EFBIG}) {
    const auto channel = this->channel({{.effect = Effect::error, .value = error_number, .nth = 1, .operation = {}, .file = {}}});
    const auto error = error_of([&] { channel->run(transfer(IoOperation::write, kChunkBytes)); });
    EXPECT_EQ(error.code(), ErrorCode::resource_exhausted) << error_number;
    EXPECT_EQ(plan_->requests(), 1u);
  }
}

TEST_P(TransferTest, InterruptionsAreRetriedAndEndlessOnesGivenUp) {
  for (const int error_number : {EINTR, EAGAIN}) {
    auto channel = this->channel({{.effect = Effect::error, .value = error_number, .nth = 1, .times = 20, .operation = {}, .file = {}}});
    spoil_buffer();
    channel->run(transfer(IoOperation::read, 4 * kChunkBytes));
    EXPECT_TRUE(std::equal(buffer_.data(), buffer_.data() + 4 * kChunkBytes, content_.data()));
    EXPECT_EQ(channel->counters().retried, 20u);
  }
  const auto channel = this->channel({{.effect = Effect::error, .value = EINTR, .nth = 1, .times = 1'000'000, .operation = {}, .file = {}}});
  EXPECT_EQ(error_of([&] { channel->run(transfer(IoOperation::read, kChunkBytes)); }).code(), ErrorCode::io);
}

TEST_P(TransferTest, ReadErrorsAreRetriedThreeTimesAndWriteErrorsNever) {
  options_.queue_depth = 1;
  for (uint64_t times = 1; times <= 4; ++times) {
    const auto channel = this->channel({{.effect = Effect::error, .value = EIO, .nth = 2, .times = times, .operation = {}, .file = {}}});
    spoil_buffer();
    const auto read = [&] { channel->run(transfer(IoOperation::read, 4 * kChunkBytes)); };
    if (times <= 3) {
      read();
      EXPECT_TRUE(std::equal(buffer_.data(), buffer_.data() + 4 * kChunkBytes, content_.data()));
    } else {
      EXPECT_EQ(error_of(read).code(), ErrorCode::io);
    }
  }
  const auto channel = this->channel({{.effect = Effect::error, .value = EIO, .nth = 1, .operation = {}, .file = {}}});
  EXPECT_EQ(error_of([&] { channel->run(transfer(IoOperation::write, kChunkBytes)); }).code(), ErrorCode::io);
}

TEST_P(TransferTest, AnyOneRequestThatFailsFailsItsTransferAloneAndTheChannelLives) {
  for (const auto operation : {IoOperation::read, IoOperation::write}) {
    bool failed = true;
    for (uint64_t nth = 1; failed; ++nth) {
      ASSERT_LT(nth, 100u);
      const auto channel = this->channel({{.effect = Effect::error, .value = ENXIO, .nth = nth, .operation = operation, .file = {}}});
      std::copy(content_.begin(), content_.end(), buffer_.data());
      try {
        channel->run(transfer(operation, 10 * kChunkBytes));
        failed = false;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::io);
      }
      plan_->set({});
      channel->run(transfer(operation, 10 * kChunkBytes));
    }
  }
}

TEST_P(TransferTest, AFailedSyncIsReported) {
  const auto channel = this->channel({{.effect = Effect::error, .value = EIO, .nth = 1, .operation = IoOperation::sync, .file = {}}});
  Transfer sync;
  sync.operation = IoOperation::sync;
  EXPECT_EQ(error_of([&] { channel->run(sync); }).code(), ErrorCode::io);
  EXPECT_EQ(plan_->requests(), 1u);
  channel->run(sync);
}

TEST_P(TransferTest, WhatNeverCompletesBecomesATimeoutAndFailsTheChannel) {
  options_.request_deadline = 50ms;
  for (const auto effect : {Effect::never, Effect::late}) {
    const auto channel = this->channel({{.effect = effect, .nth = 2, .operation = {}, .file = {}}});
    const auto error = error_of([&] { channel->run(transfer(IoOperation::read, 4 * kChunkBytes)); });
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_THAT(error.message(), HasSubstr("50 ms"));
    EXPECT_THAT(error.where(), HasSubstr(fmt::format("offset {}", kChunkBytes)));
    EXPECT_EQ(error_of([&] { channel->run(transfer(IoOperation::read, kChunkBytes)); }).code(), ErrorCode::timeout);
    EXPECT_LE(plan_->requests(), 4u) << "a failed channel starts nothing";
  }
}

TEST_P(TransferTest, ASyncThatHangsHasItsOwnDeadline) {
  options_.sync_deadline = 30ms;
  const auto channel = this->channel({{.effect = Effect::never, .nth = 1, .operation = IoOperation::sync, .file = {}}});
  Transfer sync;
  sync.operation = IoOperation::sync;
  EXPECT_EQ(error_of([&] { channel->run(sync); }).code(), ErrorCode::timeout);
}

TEST_P(TransferTest, ClosingWithARequestThatNeverCompletesEndsInBoundedTimeWithAnError) {
  auto channel = this->channel({{.effect = Effect::never, .nth = 1, .operation = {}, .file = {}}});
  std::promise<ErrorCode> outcome;
  Transfer hanging = transfer(IoOperation::read, kChunkBytes);
  hanging.done = [&](const TransferResult& result) {
    outcome.set_value(error_of([&] { std::rethrow_exception(result.error); }).code());
  };
  channel->submit(std::move(hanging));
  while (plan_->requests() == 0) std::this_thread::yield();
  channel.reset();
  EXPECT_EQ(outcome.get_future().get(), ErrorCode::cancelled);
}

TEST_P(TransferTest, ABufferIsKeptUntilTheDriveIsThroughWithIt) {
  options_.request_deadline = 50ms;
  std::weak_ptr<const void> moved, late, never;
  const auto begin = [&](TransferChannel& channel, std::weak_ptr<const void>& watched, uint64_t offset) {
    const auto buffer = std::make_shared<AlignedBuffer>(2 * kChunkBytes);
    watched = buffer;
    Transfer read = transfer(IoOperation::read, buffer->bytes(), offset);
    read.buffer = buffer->data();
    return error_of([&] { channel.run(std::move(read), buffer); }).code();
  };
  {
    const auto channel = this->channel({});
    begin(*channel, moved, 0);
    channel->run(transfer(IoOperation::read, kChunkBytes));  // the callback before has returned by then
    EXPECT_TRUE(moved.expired()) << "what has ended is not kept";
  }
  {
    const auto channel = this->channel({{.effect = Effect::late, .nth = 2, .operation = {}, .file = {}}});
    EXPECT_EQ(begin(*channel, late, 0), ErrorCode::timeout);
    const auto deadline = std::chrono::steady_clock::now() + 20s;
    while (!late.expired() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(late.expired()) << "the late completion frees the buffer";
  }
  {
    const auto channel = this->channel({{.effect = Effect::never, .nth = 2, .operation = {}, .file = {}}});
    EXPECT_EQ(begin(*channel, never, 0), ErrorCode::timeout);
  }
  EXPECT_FALSE(never.expired()) << "the drive may still write to it";
  EXPECT_EQ(plan_->land_late(), 1u);
}

TEST_P(TransferTest, ABufferOfATransferThatTheClosingEndsIsKeptToo) {
  std::weak_ptr<const void> watched;
  auto channel = this->channel({{.effect = Effect::never, .nth = 1, .operation = {}, .file = {}}});
  {
    const auto buffer = std::make_shared<AlignedBuffer>(kChunkBytes);
    watched = buffer;
    Transfer hanging = transfer(IoOperation::write, kChunkBytes);
    hanging.buffer = buffer->data();
    hanging.done = [buffer](const TransferResult&) {};
    channel->submit(std::move(hanging));
  }
  while (plan_->requests() == 0) std::this_thread::yield();
  channel.reset();
  EXPECT_FALSE(watched.expired());
  EXPECT_EQ(plan_->land_late(), 1u);
}

TEST_P(TransferTest, TheDeadlineCountsFromTheLastCompletionOfAnyRequest) {
  // Each request is a third of the deadline later than the one before: the last comes after more than twice the deadline.
  options_.request_deadline = 300ms;
  std::vector<Fault> slow;
  for (uint64_t i = 1; i <= 8; ++i)
    slow.push_back({.effect = Effect::delay, .value = static_cast<int64_t>(100 * i), .nth = i, .operation = {}, .file = {}});
  const auto channel = this->channel(slow);
  channel->run(transfer(IoOperation::read, 8 * kChunkBytes));
  EXPECT_EQ(plan_->injected(), 8u);
}

TEST_P(TransferTest, TimeInWhichTheProcessWasStoppedIsNotTheDrives) {
  options_.request_deadline = 1500ms;
  fflush(nullptr);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto channel = this->channel({{.effect = Effect::delay, .value = 500, .nth = 1, .operation = {}, .file = {}}});
    const bool whole = error_of([&] { channel->run(transfer(IoOperation::read, kChunkBytes)); }).code() == ErrorCode::internal;
    _exit(whole ? 0 : 1);  // error_of says "internal" when nothing was thrown
  }
  std::this_thread::sleep_for(200ms);
  kill(child, SIGSTOP);
  std::this_thread::sleep_for(2500ms);
  kill(child, SIGCONT);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_P(TransferTest, TransfersSubmittedFromCallbacksRun) {
  const auto channel = this->channel({});
  std::promise<void> last;
  int left = 20;
  std::function<void(TransferResult)> again = [&](const TransferResult& result) {
    EXPECT_FALSE(result.error);
    if (--left == 0) return last.set_value();
    Transfer next = transfer(IoOperation::read, kChunkBytes, static_cast<uint64_t>(left) * kChunkBytes);
    next.done = again;
    channel->submit(std::move(next));
  };
  Transfer first = transfer(IoOperation::read, kChunkBytes);
  first.done = again;
  channel->submit(std::move(first));
  last.get_future().get();
}

TEST_P(TransferTest, SurvivesRandomFaultsWithEveryByteRight) {
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    plan_ = std::make_shared<FaultPlan>(
        testing::RandomFaults{.seed = seed, .short_transfer = 0.2, .interrupted = 0.1, .read_error = 0.05, .delay = 0.05});
    TransferChannel channel({file()}, options_, testing::faulty(plan_));
    constexpr uint64_t kPieces = 16, kPiece = kFileBytes / kPieces;
    const auto data = pattern(kFileBytes, seed);
    std::copy(data.begin(), data.end(), buffer_.data());
    for (const auto operation : {IoOperation::write, IoOperation::read}) {
      if (operation == IoOperation::read) spoil_buffer();
      std::vector<std::future<uint64_t>> results;
      for (uint64_t i = 0; i < kPieces; ++i) {
        Transfer piece = transfer(operation, kPiece, i * kPiece);
        piece.buffer += i * kPiece;
        piece.checksum_bytes = kPiece - 100;
        auto promise = std::make_shared<std::promise<uint64_t>>();
        results.push_back(promise->get_future());
        piece.done = [promise](const TransferResult& result) {
          result.error ? promise->set_exception(result.error) : promise->set_value(result.checksum);
        };
        channel.submit(std::move(piece));
      }
      for (uint64_t i = 0; i < kPieces; ++i) {
        try {
          EXPECT_EQ(results[i].get(), checksum_of(data.data() + i * kPiece, kPiece - 100, 42)) << i;
        } catch (const Error& error) {
          ADD_FAILURE() << error.what();  // four read errors in a row on one request: as good as impossible
        }
      }
    }
    EXPECT_TRUE(std::equal(data.begin(), data.end(), buffer_.data()));
    EXPECT_GT(plan_->injected(), 20u);
    content_ = data;
    expect_on_disk(data);
  }
}

TEST_P(TransferTest, TheFileSizeLimitIsAnErrorWithTheOffsetThatWasReached) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{3 * kChunkBytes + 4096, 3 * kChunkBytes + 4096};
    setrlimit(RLIMIT_FSIZE, &limit);
    options_.queue_depth = 1;
    const auto error = error_of([&] { TransferChannel({file()}, options_).run(transfer(IoOperation::write, 8 * kChunkBytes)); });
    const bool right = error.code() == ErrorCode::resource_exhausted &&
                       error.where().find(fmt::format("offset {}", 3 * kChunkBytes + 4096)) != std::string::npos;
    _exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST_P(TransferTest, AFullFileSystemIsAnErrorWithTheOffsetThatWasReached) {
  const auto place = directory_.path() / "small";
  std::filesystem::create_directory(place);
  if (mount("strata-test", place.c_str(), "tmpfs", 0, "size=256k") != 0) GTEST_SKIP() << "cannot mount a tmpfs";
  {
    const auto handle = open_directory(place);
    const auto small = make_file(handle.get(), "file", place);
    TransferChannel channel({{small.get(), (place / "file").string(), 1}}, options_);
    const auto error = error_of([&] { channel.run(transfer(IoOperation::write, kFileBytes)); });
    EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
    EXPECT_THAT(error.message(), HasSubstr("No space left on device"));
  }
  // io_uring gives registered files back some time after its ring has gone: a plain unmount would find them in use.
  EXPECT_EQ(umount2(place.c_str(), MNT_DETACH), 0);
}

INSTANTIATE_TEST_SUITE_P(Engines, TransferTest, ::testing::Values(IoEngineKind::threads, IoEngineKind::io_uring),
                         [](const auto& info) { return info.param == IoEngineKind::threads ? "Threads" : "Uring"; });

/// Completes everything at once and remembers the lengths.
class InstantEngine final : public IoEngine {
 public:
  explicit InstantEngine(uint64_t& total, uint32_t& longest) : total_(total), longest_(longest) {}
  void submit(std::span<const IoRequest> requests) override {
    for (const auto& request : requests) {
      total_ += request.length_bytes;
      longest_ = std::max(longest_, request.length_bytes);
      done_.push_back({request.tag, request.length_bytes});
    }
  }
  size_t wait(std::span<IoCompletion> completions, std::chrono::microseconds timeout) override {
    if (done_.empty()) std::this_thread::sleep_for(std::min<std::chrono::microseconds>(timeout, 1ms));
    const size_t count = std::min(completions.size(), done_.size());
    std::copy_n(done_.begin(), count, completions.begin());
    done_.erase(done_.begin(), done_.begin() + static_cast<ptrdiff_t>(count));
    return count;
  }
  void wake() override {}
  void cancel(uint64_t) override {}
  std::string describe() const override { return "instant"; }

 private:
  uint64_t& total_;
  uint32_t& longest_;
  std::vector<IoCompletion> done_;
};

TEST(TransferSizes, ATransferOfFiveGibibytesIsSplitFarBelowWhatASystemCallMoves) {
  constexpr uint64_t kBytes = (uint64_t{5} << 30) + 4096;
  void* memory = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  uint64_t total = 0;
  uint32_t longest = 0;
  {
    TransferOptions options;
    options.chunk_bytes = 4u << 20;
    TransferChannel channel({{-1, "nowhere", 4096}}, options, [&](const IoEngineConfig&) -> std::unique_ptr<IoEngine> {
      return std::make_unique<InstantEngine>(total, longest);
    });
    Transfer transfer;
    transfer.operation = IoOperation::write;
    transfer.length_bytes = kBytes;
    transfer.buffer = static_cast<std::byte*>(memory);
    channel.run(std::move(transfer));
  }
  munmap(memory, kBytes);
  EXPECT_EQ(total, kBytes);
  EXPECT_EQ(longest, 4u << 20);
}

TEST(TransferSizes, AnEngineThatCannotBeMadeIsTheConstructorsError) {
  const IoEngineFactory broken = [](const IoEngineConfig&) -> std::unique_ptr<IoEngine> {
    throw Error(ErrorCode::unsupported, "no engine today");
  };
  EXPECT_EQ(error_of([&] { TransferChannel({{-1, "nowhere", 1}}, {}, broken); }).code(), ErrorCode::unsupported);
}

TEST(TransferSizes, MisalignedTransfersAreRefusedAtTheCall) {
  TransferChannel channel({{-1, "nowhere", 4096}}, {});
  AlignedBuffer buffer(8192);
  Transfer transfer;
  transfer.buffer = buffer.data();
  transfer.length_bytes = 100;
  EXPECT_EQ(error_of([&] { channel.run(transfer); }).code(), ErrorCode::internal);
  transfer.length_bytes = 4096;
  transfer.offset_bytes = 1;
  EXPECT_EQ(error_of([&] { channel.run(transfer); }).code(), ErrorCode::internal);
  transfer.offset_bytes = 0;
  transfer.buffer += 1;
  EXPECT_EQ(error_of([&] { channel.run(transfer); }).code(), ErrorCode::internal);
}

}  // namespace
}  // namespace strata::tiers
