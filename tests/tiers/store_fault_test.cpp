// Corruption, lost and misdirected writes, hangs and failed syncs: found before the data is used, and named.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/files.hpp"
#include "tests/support/scratch_directory.hpp"
#include "tests/tiers/faulty_io_engine.hpp"
#include "tests/tiers/store_driver.hpp"
#include "tiers/format.hpp"
#include "tiers/nvme_store.hpp"

namespace strata::tiers {
namespace {

using testing::Effect;
using testing::error_of;
using testing::Fault;
using testing::pattern;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace std::chrono_literals;

class StoreFault : public ::testing::Test {
 protected:
  StoreFault() {
    options_.directories = {{directory_.path() / "store", 0}};
    options_.fingerprint = "fault";
    options_.state = {{"first", 5000}, {"second", 5000}, {"third", 300'000}};
    options_.scratch = {{"scratch", 20'000}};
    hooks_.engine_factory = testing::faulty(plan_);
    hooks_.transfers.request_deadline = 100ms;
    hooks_.transfers.sync_deadline = 100ms;
    hooks_.transfers.shutdown_grace = 100ms;
    hooks_.transfers.chunk_bytes = 64 << 10;
  }

  std::vector<std::byte> content(uint32_t extent, uint64_t generation) const {
    return pattern(options_.state[extent].bytes, generation * 10 + extent);
  }
  void write_all(NvmeStore& store, uint64_t generation) {
    for (uint32_t i = 0; i < options_.state.size(); ++i) testing::write(store, i, content(i, generation));
  }
  void expect_all(NvmeStore& store, uint64_t generation) {
    for (uint32_t i = 0; i < options_.state.size(); ++i) {
      EXPECT_TRUE(testing::read(store, i, options_.state[i].bytes) == content(i, generation)) << i;
    }
  }
  /// A store with `generations` commits, closed.
  void make(uint64_t generations) {
    const auto store = NvmeStore::create(options_);
    for (uint64_t generation = 1; generation <= generations; ++generation) {
      write_all(*store, generation);
      store->commit(fmt::format("{}", generation));
    }
  }
  std::filesystem::path file(const char* name) const { return options_.directories[0].path / name; }
  StoreTable table() const {
    const int descriptor = open(file(kCommitFileName).c_str(), O_RDONLY | O_CLOEXEC);
    const FileDescriptor owner(descriptor);
    return read_table(descriptor, file(kCommitFileName));
  }
  /// Where extent `i` of generation `generation` lies: generation 1 goes to slots 0.
  uint64_t place(uint32_t extent, uint64_t generation) const { return table().places[extent].offset_bytes[(generation + 1) % 2]; }
  Error read_error(uint32_t extent) {
    return error_of([&] { testing::read(*NvmeStore::open(options_), extent, options_.state[extent].bytes); });
  }

  ScratchDirectory directory_;
  StoreOptions options_;
  StoreHooks hooks_;
  std::shared_ptr<testing::FaultPlan> plan_ = std::make_shared<testing::FaultPlan>();
};

TEST_F(StoreFault, AFlippedBitInAnExtentIsNamedAndNotGivenOut) {
  for (const uint64_t byte : {0, 1, 2047, 4095, 4096, 4999}) {
    make(1);
    flip_bit(file(kStateFileName), place(1, 1) + byte, static_cast<int>(byte % 8));
    const auto error = read_error(1);
    EXPECT_EQ(error.code(), ErrorCode::data_corruption) << byte;
    EXPECT_THAT(error.where(), HasSubstr(file(kStateFileName).string()));
    EXPECT_THAT(error.where(), HasSubstr(fmt::format("offset {}", place(1, 1))));
    EXPECT_THAT(error.where(), HasSubstr("second"));
    const auto store = NvmeStore::open(options_);
    EXPECT_TRUE(testing::read(*store, 0, 5000) == content(0, 1)) << "the others are whole";
    EXPECT_THAT(store->verify({}), ElementsAre(HasSubstr("second: the checksum")));
  }
}

TEST_F(StoreFault, AFlippedBitInThePaddingOrTheOtherSlotChangesNothing) {
  make(2);
  flip_bit(file(kStateFileName), place(1, 2) + 5000);
  flip_bit(file(kStateFileName), place(1, 2) + 8191);
  flip_bit(file(kStateFileName), place(1, 1) + 100);
  const auto store = NvmeStore::open(options_);
  expect_all(*store, 2);
  EXPECT_THAT(store->verify({}), IsEmpty());
}

TEST_F(StoreFault, AFlippedBitInAHeaderIsRefusedAtOpening) {
  for (const char* name : {kStateFileName, kCommitFileName}) {
    for (const uint64_t byte : {0, 8, 12, 20, 30, 50, 2000, 4090}) {
      make(1);
      flip_bit(file(name), byte);
      const auto error = error_of([&] { NvmeStore::open(options_); });
      EXPECT_EQ(error.code(), ErrorCode::data_corruption) << name << " " << byte;
      EXPECT_THAT(error.where(), HasSubstr(file(name).string()));
    }
  }
  make(1);
  flip_bit(file(kCommitFileName), kBlockBytes + 5);  // the table
  EXPECT_THAT(error_of([&] { NvmeStore::open(options_); }).message(), HasSubstr("table of extents"));
  EXPECT_EQ(error_of([&] { NvmeStore::has_commit({options_.directories[0].path}); }).code(), ErrorCode::data_corruption)
      << "a damaged store must not look like none, or it would be replaced";
}

TEST_F(StoreFault, EveryByteOfARecordIsCovered) {
  make(2);
  const uint64_t length = 64 + 3 * 16 + 1;
  for (uint64_t byte = 0; byte < length; ++byte) {
    flip_bit(file(kCommitFileName), table().area_offset(2) + byte, static_cast<int>(byte % 8));
    // The record of the generation before is what is left.
    EXPECT_EQ(NvmeStore::inspect(options_.directories[0].path).generation, 1u) << byte;
    flip_bit(file(kCommitFileName), table().area_offset(2) + byte, static_cast<int>(byte % 8));
  }
  EXPECT_EQ(NvmeStore::inspect(options_.directories[0].path).generation, 2u);
  flip_bit(file(kCommitFileName), table().area_offset(2) + length + 3);  // padding
  expect_all(*NvmeStore::open(options_), 2);
}

TEST_F(StoreFault, WithoutItsNewestRecordTheStoreIsTheGenerationBeforeOrAnErrorNeverAMixture) {
  make(2);
  flip_bit(file(kCommitFileName), table().area_offset(2) + 70);
  {
    const auto store = NvmeStore::open(options_);
    EXPECT_EQ(store->record(), "1");
    expect_all(*store, 1);
  }
  // Once the next generation has begun, the slots of generation 1 are gone: that must be found.
  make(2);
  {
    const auto store = NvmeStore::open(options_);
    testing::write(*store, 0, content(0, 3));
  }
  flip_bit(file(kCommitFileName), table().area_offset(2) + 70);
  EXPECT_EQ(read_error(0).code(), ErrorCode::data_corruption);
  EXPECT_THAT(NvmeStore::open(options_)->verify({}), ElementsAre(HasSubstr("generation 2 is damaged"), HasSubstr("first")));
}

TEST_F(StoreFault, TwoBrokenRecordsAreCorruption) {
  make(2);
  flip_bit(file(kCommitFileName), table().area_offset(1));
  flip_bit(file(kCommitFileName), table().area_offset(2));
  EXPECT_EQ(error_of([&] { NvmeStore::open(options_); }).code(), ErrorCode::data_corruption);
  EXPECT_EQ(error_of([&] { NvmeStore::inspect(options_.directories[0].path); }).code(), ErrorCode::data_corruption);
  EXPECT_EQ(error_of([&] { NvmeStore::has_commit({options_.directories[0].path}); }).code(), ErrorCode::data_corruption);
}

TEST_F(StoreFault, SwappedAndStaleExtentsAreFoundAlthoughEachIsWhole) {
  make(2);
  const auto bytes_at = [&](uint64_t offset) {
    std::vector<char> data(5000);
    std::ifstream stream(file(kStateFileName), std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(offset));
    stream.read(data.data(), 5000);
    return data;
  };
  const auto put = [&](uint64_t offset, const std::vector<char>& data) {
    std::fstream stream(file(kStateFileName), std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(offset));
    stream.write(data.data(), 5000);
  };
  const auto first = bytes_at(place(0, 2)), second = bytes_at(place(1, 2)), stale = bytes_at(place(0, 1));
  put(place(0, 2), second);
  put(place(1, 2), first);
  EXPECT_EQ(read_error(0).code(), ErrorCode::data_corruption);
  EXPECT_EQ(read_error(1).code(), ErrorCode::data_corruption);
  put(place(1, 2), second);
  put(place(0, 2), stale);
  EXPECT_EQ(read_error(0).code(), ErrorCode::data_corruption);
  put(place(0, 2), first);
  expect_all(*NvmeStore::open(options_), 2);
}

TEST_F(StoreFault, TheSameContentInAnotherExtentHasAnotherChecksum) {
  // Swapping two equal extents would not matter; a checksum that took one for the other would.
  options_.state = {{"one", 4096}, {"two", 4096}};
  const auto store = NvmeStore::create(options_);
  testing::write(*store, 0, pattern(4096, 1));
  testing::write(*store, 1, pattern(4096, 1));
  store->commit("");
  const int descriptor = open(file(kCommitFileName).c_str(), O_RDONLY | O_CLOEXEC);
  const FileDescriptor owner(descriptor);
  const auto record = read_newest_record(descriptor, table(), file(kCommitFileName));
  EXPECT_NE(record.extents[0].checksum, record.extents[1].checksum);
}

TEST_F(StoreFault, TruncatedGrownAndMissingFilesAreRefusedWithBothLengths) {
  make(1);
  const uint64_t bytes = std::filesystem::file_size(file(kStateFileName));
  for (const uint64_t length : {bytes - 1, bytes + 4096, uint64_t{5000}}) {
    std::filesystem::resize_file(file(kStateFileName), length);
    const auto error = error_of([&] { NvmeStore::open(options_); });
    EXPECT_EQ(error.code(), ErrorCode::data_corruption);
    EXPECT_THAT(error.message(), HasSubstr(fmt::format("has {} bytes, {} were expected", length, bytes)));
  }
  std::filesystem::remove(file(kStateFileName));
  EXPECT_THAT(error_of([&] { NvmeStore::open(options_); }).message(), HasSubstr("missing"));
  make(1);
  for (const uint64_t length : {0, 10, 4096, 5000}) {
    std::filesystem::resize_file(file(kCommitFileName), length);
    EXPECT_EQ(error_of([&] { NvmeStore::open(options_); }).code(), ErrorCode::data_corruption) << length;
  }
}

TEST_F(StoreFault, AForeignFileIsNotTakenForAStore) {
  make(1);
  write_file(file(kCommitFileName), std::string(1 << 20, 'x'));
  EXPECT_EQ(error_of([&] { NvmeStore::open(options_); }).code(), ErrorCode::data_corruption);
  std::filesystem::remove(file(kCommitFileName));
  std::filesystem::create_directory(file(kCommitFileName));
  EXPECT_EQ(error_of([&] { NvmeStore::has_commit({options_.directories[0].path}); }).code(), ErrorCode::invalid_data);
}

TEST_F(StoreFault, AFileChangedUnderARunIsFoundAtTheCommit) {
  for (const bool replaced : {false, true}) {
    const auto store = NvmeStore::create(options_);
    write_all(*store, 1);
    if (replaced) {
      std::filesystem::copy_file(file(kStateFileName), file("copy"));
      std::filesystem::rename(file("copy"), file(kStateFileName));
    } else {
      std::filesystem::resize_file(file(kStateFileName), std::filesystem::file_size(file(kStateFileName)) - 4096);
    }
    EXPECT_EQ(error_of([&] { store->commit("one"); }).code(), ErrorCode::data_corruption);
    EXPECT_EQ(error_of([&] { write_all(*store, 2); }).code(), ErrorCode::data_corruption) << "and no more is written";
  }
}

TEST_F(StoreFault, LostAndMisdirectedWritesAndFlippedReadsAreFoundAtTheRead) {
  const auto store = create_store(options_, hooks_);
  for (const auto effect : {Effect::lost, Effect::misdirected}) {
    write_all(*store, 1);
    plan_->set({{.effect = effect, .value = 8192, .nth = 1, .operation = IoOperation::write, .file = {}}});
    testing::write(*store, 0, content(0, 2));
    EXPECT_EQ(plan_->injected(), 1u);
    EXPECT_EQ(error_of([&] { testing::read(*store, 0, 5000); }).code(), ErrorCode::data_corruption);
    store->discard();
  }
  write_all(*store, 1);
  for (const int64_t bit : {0, 5000 * 8 - 1}) {
    plan_->set({{.effect = Effect::flip, .value = bit, .nth = 1, .operation = IoOperation::read, .file = {}}});
    EXPECT_EQ(error_of([&] { testing::read(*store, 0, 5000); }).code(), ErrorCode::data_corruption);
    EXPECT_TRUE(testing::read(*store, 0, 5000) == content(0, 1)) << "the next read is right";
  }
  testing::write(*store, 0, pattern(20'000, 5), testing::Part::scratch);
  plan_->set({{.effect = Effect::flip, .value = 12'345, .nth = 1, .operation = IoOperation::read, .file = {}}});
  EXPECT_EQ(error_of([&] { testing::read(*store, 0, 20'000, testing::Part::scratch); }).code(), ErrorCode::data_corruption);
}

TEST_F(StoreFault, AFailedWriteBlocksTheCommitUntilItIsDiscarded) {
  const auto store = create_store(options_, hooks_);
  write_all(*store, 1);
  store->commit("one");
  plan_->set({{.effect = Effect::error, .value = ENOSPC, .nth = 3, .operation = IoOperation::write, .file = {}}});
  const auto error = error_of([&] { write_all(*store, 2); });
  EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
  EXPECT_THAT(error.where(), HasSubstr("third"));
  EXPECT_EQ(error_of([&] { testing::read(*store, 2, 300'000); }).code(), ErrorCode::resource_exhausted)
      << "the older content must not pass for the newest";
  EXPECT_EQ(error_of([&] { store->commit("two"); }).code(), ErrorCode::resource_exhausted);
  store->discard();
  expect_all(*store, 1);
  EXPECT_EQ(store->generation(), 1u);
  write_all(*store, 3);
  store->commit("three");
  expect_all(*store, 3);
}

TEST_F(StoreFault, AFailedSyncEndsTheWritingAndKeepsTheLastCommit) {
  for (const uint64_t nth : {1, 2}) {  // of the data, of the record
    {
      plan_->set({});
      const auto store = create_store(options_, hooks_);
      write_all(*store, 1);
      store->commit("one");
      write_all(*store, 2);
      plan_->set({{.effect = Effect::error, .value = EIO, .nth = nth, .operation = IoOperation::sync, .file = {}}});
      EXPECT_EQ(error_of([&] { store->commit("two"); }).code(), ErrorCode::io);
      EXPECT_EQ(error_of([&] { store->commit("two"); }).code(), ErrorCode::io) << "a sync is not tried again";
      EXPECT_EQ(error_of([&] { testing::write(*store, 0, content(0, 3)); }).code(), ErrorCode::io);
      EXPECT_EQ(store->generation(), 1u);
      store->discard();
      expect_all(*store, 1);
    }
    const auto store = NvmeStore::open(options_);
    expect_all(*store, store->generation());
    EXPECT_LE(store->generation(), nth);
  }
}

TEST_F(StoreFault, AHungTransferIsATimeoutThatNamesItAndClosingIsBounded) {
  auto store = create_store(options_, hooks_);
  write_all(*store, 1);
  store->commit("one");
  plan_->set({{.effect = Effect::never, .nth = 2, .operation = IoOperation::read, .file = {}}});
  const auto error = error_of([&] { testing::read(*store, 2, 300'000); });
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_THAT(error.where(), HasSubstr("third"));
  EXPECT_EQ(error_of([&] { store->commit("two"); }).code(), ErrorCode::timeout);
  store.reset();
  expect_all(*NvmeStore::open(options_), 1);
}

// The requests of a store that hang land after it has gone: under AddressSanitizer each buffer that was freed too soon is found.

TEST_F(StoreFault, BuffersOfHungTransfersOutliveTheStore) {
  for (const auto operation : {IoOperation::read, IoOperation::write}) {
    auto store = create_store(options_, hooks_);
    write_all(*store, 1);
    store->commit("one");
    plan_->set({{.effect = Effect::never, .nth = 2, .operation = operation, .file = {}}});
    EXPECT_EQ(error_of([&] {
                operation == IoOperation::read ? static_cast<void>(testing::read(*store, 2, 300'000)) : testing::write(*store, 2, content(2, 2));
              }).code(),
              ErrorCode::timeout);
    store.reset();
    EXPECT_EQ(plan_->land_late(), 1u);
    plan_->set({});
  }
}

TEST_F(StoreFault, TheRecordOfACommitThatHangsOutlivesTheStore) {
  auto store = create_store(options_, hooks_);
  write_all(*store, 1);
  plan_->set({{.effect = Effect::never, .nth = 1, .operation = IoOperation::write, .file = {}}});
  EXPECT_EQ(error_of([&] { store->commit("one"); }).code(), ErrorCode::timeout);
  store.reset();
  EXPECT_EQ(plan_->land_late(), 1u);
}

TEST_F(StoreFault, BuffersOfAVerificationThatHangsOutliveTheStore) {
  make(1);
  for (uint64_t nth = 1; nth <= 10; ++nth) {  // two headers, the record, and pieces of each extent
    plan_->set({});
    auto store = open_store(options_, hooks_);
    plan_->set({{.effect = Effect::never, .nth = nth, .operation = IoOperation::read, .file = {}}});
    EXPECT_FALSE(store->verify({}).empty()) << nth;
    store.reset();
    EXPECT_EQ(plan_->land_late(), 1u) << nth;
  }
}

TEST_F(StoreFault, AVerificationThatItsCallerEndsLeavesNoReadBehind) {
  options_.state.push_back({"fourth", 20u << 20});  // several pieces: one is read while another is hashed
  make(1);
  auto store = open_store(options_, hooks_);
  plan_->set({{.effect = Effect::delay, .value = 20, .nth = 1, .times = 100'000, .operation = IoOperation::read, .file = {}}});
  struct Stopped {};
  EXPECT_THROW(store->verify([](uint64_t done, uint64_t) {
    if (done > 320'000) throw Stopped();
  }),
               Stopped);
  store.reset();
}

TEST_F(StoreFault, VerifyReportsProgressAndReadErrors) {
  make(1);
  const auto store = open_store(options_, hooks_);
  std::vector<std::pair<uint64_t, uint64_t>> seen;
  EXPECT_THAT(store->verify([&](uint64_t done, uint64_t total) { seen.push_back({done, total}); }), IsEmpty());
  EXPECT_EQ(seen.front(), (std::pair<uint64_t, uint64_t>{0, 310'000}));
  EXPECT_EQ(seen.back(), (std::pair<uint64_t, uint64_t>{310'000, 310'000}));
  plan_->set({{.effect = Effect::error, .value = ENODEV, .nth = 1, .times = 1000, .operation = IoOperation::read, .file = {}}});
  EXPECT_EQ(store->verify({}).size(), 7u);  // two headers, both records, three extents
}

TEST_F(StoreFault, VerifyReadsWhatIsCommittedWhileARunHasWrittenMore) {
  const auto store = NvmeStore::create(options_);
  write_all(*store, 1);
  store->commit("one");
  write_all(*store, 2);
  EXPECT_THAT(store->verify({}), IsEmpty());
  flip_bit(file(kStateFileName), place(0, 1));
  EXPECT_THAT(store->verify({}), ElementsAre(HasSubstr("first")));
}

}  // namespace
}  // namespace strata::tiers
