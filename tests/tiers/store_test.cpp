// The store as its users see it: slots, commits, resuming, refusals, several directories, sizes at the edges.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/files.hpp"
#include "tests/support/scratch_directory.hpp"
#include "tests/tiers/store_driver.hpp"
#include "tiers/format.hpp"
#include "tiers/lock.hpp"
#include "tiers/nvme_store.hpp"

namespace strata::tiers {
namespace {

using testing::error_of;
using testing::Part;
using testing::pattern;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kBytes[] = {1, 4096, 5000, (1u << 20) + 511, 3u << 20};

StoreOptions options_for(const std::filesystem::path& path) {
  StoreOptions options;
  options.directories = {{path, 0}};
  options.fingerprint = "a model";
  for (const uint64_t bytes : kBytes) options.state.push_back({fmt::format("state of {} bytes", bytes), bytes});
  options.scratch = {{"small scratch", 100}, {"large scratch", (2u << 20) + 1}};
  return options;
}

uint64_t seed_of(uint32_t extent, uint64_t generation) { return generation * 1000 + extent; }

void write_generation(NvmeStore& store, const StoreOptions& options, uint64_t generation) {
  for (uint32_t i = 0; i < options.state.size(); ++i) {
    testing::write(store, i, pattern(options.state[i].bytes, seed_of(i, generation)));
  }
}

void expect_generation(NvmeStore& store, const StoreOptions& options, uint64_t generation) {
  for (uint32_t i = 0; i < options.state.size(); ++i) {
    EXPECT_TRUE(testing::read(store, i, options.state[i].bytes) == pattern(options.state[i].bytes, seed_of(i, generation)))
        << options.state[i].name << ", generation " << generation;
  }
}

/// On the drive with either engine, and in memory, where there is no direct I/O.
struct Setting {
  const char* name;
  const char* parent;
  IoEngineKind engine;
};

class NvmeStoreOn : public ::testing::TestWithParam<Setting> {
 protected:
  static std::filesystem::path parent() {
    return GetParam().parent ? std::filesystem::path(GetParam().parent) : std::filesystem::temp_directory_path();
  }
  StoreOptions options() const {
    StoreOptions result = options_for(directory_.path() / "store");
    result.engine = GetParam().engine;
    return result;
  }
  ScratchDirectory directory_{parent()};
};

TEST_P(NvmeStoreOn, GivesBackWhatWasWrittenBeforeAndAfterACommitAndAReopening) {
  const auto options = this->options();
  {
    const auto store = NvmeStore::create(options);
    EXPECT_EQ(store->generation(), 0u);
    EXPECT_EQ(store->record(), "");
    EXPECT_FALSE(NvmeStore::has_commit({options.directories[0].path}));
    for (uint64_t generation = 1; generation <= 3; ++generation) {
      write_generation(*store, options, generation);
      expect_generation(*store, options, generation);
      store->commit(fmt::format("step {}", generation));
      expect_generation(*store, options, generation);
      EXPECT_EQ(store->generation(), generation);
    }
    EXPECT_GE(store->bytes_written(), 3u * (4u << 20));
    EXPECT_GE(store->bytes_read(), 6u * (4u << 20));
    EXPECT_EQ(store->bytes_on_disk(), store_bytes_needed(options));
    std::cout << store->engine_description() << "\n";
  }
  EXPECT_TRUE(NvmeStore::has_commit({options.directories[0].path}));
  const auto store = NvmeStore::open(options);
  EXPECT_EQ(store->generation(), 3u);
  EXPECT_EQ(store->record(), "step 3");
  expect_generation(*store, options, 3);
  EXPECT_THAT(store->verify({}), ::testing::IsEmpty());
}

TEST_P(NvmeStoreOn, KeepsScratchApartAndForgetsItAtTheEnd) {
  const auto options = this->options();
  auto store = NvmeStore::create(options);
  write_generation(*store, options, 1);
  for (uint32_t i = 0; i < 2; ++i) testing::write(*store, i, pattern(options.scratch[i].bytes, 77 + i), Part::scratch);
  for (uint32_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(testing::read(*store, i, options.scratch[i].bytes, Part::scratch) == pattern(options.scratch[i].bytes, 77 + i));
  }
  expect_generation(*store, options, 1);
  store->commit("");
  store.reset();
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(options.directories[0].path)) {
    names.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("strata.lock", "strata.state", "strata.commit"));
  store = NvmeStore::open(options);
  EXPECT_EQ(error_of([&] { testing::read(*store, 0, 100, Part::scratch); }).code(), ErrorCode::internal);
}

INSTANTIATE_TEST_SUITE_P(Settings, NvmeStoreOn,
                         ::testing::Values(Setting{"DriveAutomatic", nullptr, IoEngineKind::automatic},
                                           Setting{"DriveThreads", nullptr, IoEngineKind::threads},
                                           Setting{"MemoryAutomatic", "/dev/shm", IoEngineKind::automatic},
                                           Setting{"MemoryThreads", "/dev/shm", IoEngineKind::threads}),
                         [](const auto& info) { return info.param.name; });

class NvmeStoreTest : public ::testing::Test {
 protected:
  ScratchDirectory directory_;
  StoreOptions options_ = options_for(directory_.path() / "store");
  std::filesystem::path path() const { return options_.directories[0].path; }
};

TEST_F(NvmeStoreTest, SaysThatMemoryFilesAreBuffered) {
  const ScratchDirectory memory("/dev/shm");
  auto options = options_for(memory.path() / "store");
  EXPECT_THAT(NvmeStore::create(options)->engine_description(), HasSubstr("buffered ("));
}

TEST_F(NvmeStoreTest, DiscardGivesTheCommittedContentAgain) {
  const auto store = NvmeStore::create(options_);
  write_generation(*store, options_, 1);
  store->commit("one");
  write_generation(*store, options_, 2);
  expect_generation(*store, options_, 2);
  store->discard();
  expect_generation(*store, options_, 1);
  write_generation(*store, options_, 3);
  write_generation(*store, options_, 4);  // over the slot that is not committed
  store->commit("two");
  expect_generation(*store, options_, 4);
}

TEST_F(NvmeStoreTest, DiscardBeforeTheFirstCommitLeavesNothingToRead) {
  const auto store = NvmeStore::create(options_);
  testing::write(*store, 0, pattern(1, 5));
  store->discard();
  EXPECT_EQ(error_of([&] { testing::read(*store, 0, 1); }).code(), ErrorCode::internal);
}

TEST_F(NvmeStoreTest, ExtentsNotWrittenKeepTheirCommittedContent) {
  {
    const auto store = NvmeStore::create(options_);
    write_generation(*store, options_, 1);
    store->commit("all");
    for (uint64_t generation = 2; generation < 9; ++generation) {
      const uint32_t extent = generation % options_.state.size();
      testing::write(*store, extent, pattern(options_.state[extent].bytes, seed_of(extent, generation)));
      store->commit(fmt::format("only {}", extent));
    }
    store->commit("nothing at all");
  }
  const auto store = NvmeStore::open(options_);
  EXPECT_EQ(store->generation(), 9u);
  for (uint32_t i = 0; i < options_.state.size(); ++i) {
    const uint64_t newest = i < 4 ? 5 + i : 4;
    EXPECT_TRUE(testing::read(*store, i, options_.state[i].bytes) == pattern(options_.state[i].bytes, seed_of(i, newest))) << i;
  }
}

TEST_F(NvmeStoreTest, WhatWasNotCommittedNeverHappened) {
  {
    const auto store = NvmeStore::create(options_);
    write_generation(*store, options_, 1);
    store->commit("one");
    write_generation(*store, options_, 2);
  }
  const auto store = NvmeStore::open(options_);
  EXPECT_EQ(store->record(), "one");
  expect_generation(*store, options_, 1);
}

TEST_F(NvmeStoreTest, CreateReplacesAnOldStore) {
  {
    const auto store = NvmeStore::create(options_);
    write_generation(*store, options_, 1);
    store->commit("old");
  }
  options_.fingerprint = "another model";
  options_.state.resize(2);
  const auto store = NvmeStore::create(options_);
  EXPECT_FALSE(NvmeStore::has_commit({path()}));
  write_generation(*store, options_, 2);
  store->commit("new");
  expect_generation(*store, options_, 2);
}

TEST_F(NvmeStoreTest, OpenRefusesAnotherModelAndSaysHowItDiffers) {
  {
    const auto store = NvmeStore::create(options_);
    EXPECT_EQ(error_of([&] { NvmeStore::inspect(directory_.path()); }).code(), ErrorCode::invalid_data);
  }
  EXPECT_THAT(error_of([&] { NvmeStore::open(options_); }).message(), HasSubstr("no commit"));
  NvmeStore::create(options_)->commit("one");
  auto other = options_;
  other.fingerprint = "b model";
  auto error = error_of([&] { NvmeStore::open(other); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_data);
  EXPECT_THAT(error.message(), HasSubstr("its fingerprint is 'a model', this run's is 'b model'"));
  other = options_;
  other.state[2].bytes = 6000;
  EXPECT_THAT(error_of([&] { NvmeStore::open(other); }).message(), HasSubstr("extent 2 is 'state of 5000 bytes' of 5000 bytes"));
  other = options_;
  other.state.pop_back();
  EXPECT_THAT(error_of([&] { NvmeStore::open(other); }).message(), HasSubstr("it has 5 extents, this run 4"));
  other = options_;
  other.directories[0].path = directory_.path() / "elsewhere";
  EXPECT_THAT(error_of([&] { NvmeStore::open(other); }).message(), HasSubstr("there is no store"));
}

TEST_F(NvmeStoreTest, InspectWorksWhileARunHoldsTheStore) {
  const auto store = NvmeStore::create(options_);
  write_generation(*store, options_, 1);
  store->commit("what the trainer keeps");
  const StoreSummary summary = NvmeStore::inspect(path());
  EXPECT_EQ(summary.fingerprint, "a model");
  EXPECT_EQ(summary.generation, 1u);
  EXPECT_EQ(summary.record, "what the trainer keeps");
  ASSERT_EQ(summary.state.size(), options_.state.size());
  EXPECT_EQ(summary.state[3].name, options_.state[3].name);
  EXPECT_EQ(summary.state[3].bytes, options_.state[3].bytes);
  EXPECT_GT(summary.bytes_on_disk, 8u << 20);
}

TEST_F(NvmeStoreTest, OpenReadOnlyReadsAndNothingElse) {
  const auto refused = [&] { NvmeStore::open_read_only({path()}); };
  {
    const auto store = NvmeStore::create(options_);
    write_generation(*store, options_, 1);
    store->commit("one");
    EXPECT_EQ(error_of(refused).code(), ErrorCode::busy);
  }
  const auto store = NvmeStore::open_read_only({path()});
  const auto second = NvmeStore::open_read_only({path()});
  EXPECT_EQ(store->record(), "one");
  expect_generation(*store, options_, 1);
  expect_generation(*second, options_, 1);
  EXPECT_THAT(store->verify({}), ::testing::IsEmpty());
  EXPECT_EQ(error_of([&] { testing::write(*store, 0, pattern(1, 1)); }).code(), ErrorCode::internal);
  EXPECT_EQ(error_of([&] { store->commit(""); }).code(), ErrorCode::internal);
  const auto run = error_of([&] { NvmeStore::open(options_); });
  EXPECT_EQ(run.code(), ErrorCode::busy);
  EXPECT_THAT(run.message(), HasSubstr("being read by another process"));
}

TEST_F(NvmeStoreTest, ASecondProcessIsRefusedWithTheFirstOnesProcessId) {
  // The child comes first: it must not inherit the store's threads half-way through something.
  int created[2];
  ASSERT_EQ(pipe(created), 0);
  const pid_t child = fork();
  if (child == 0) {
    char ready = 0;
    if (::read(created[0], &ready, 1) != 1) _exit(2);
    const auto error = error_of([&] { NvmeStore::open(options_); });
    const bool right = error.code() == ErrorCode::busy &&
                       error.message().find(fmt::format("process {} on host ", getppid())) != std::string::npos;
    _exit(right ? 0 : 1);
  }
  const auto store = NvmeStore::create(options_);
  ASSERT_EQ(::write(created[1], "", 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  close(created[0]);
  close(created[1]);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST_F(NvmeStoreTest, AKilledProcessLeavesNoLock) {
  const pid_t child = fork();
  if (child == 0) {
    const auto store = NvmeStore::create(options_);
    write_generation(*store, options_, 1);
    store->commit("one");
    write_generation(*store, options_, 2);
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const auto store = NvmeStore::open(options_);
  expect_generation(*store, options_, 1);
}

TEST_F(NvmeStoreTest, FilesArePrivateWhateverTheUmask) {
  for (const mode_t mask : {0000, 0777}) {
    const ScratchDirectory place;
    const auto options = options_for(place.path() / "store");
    const mode_t before = umask(mask);
    const auto store = NvmeStore::create(options);
    umask(before);
    struct stat status {};
    ASSERT_EQ(stat(options.directories[0].path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0700u);
    for (const char* name : {kStateFileName, kCommitFileName, kLockFileName}) {
      ASSERT_EQ(stat((options.directories[0].path / name).c_str(), &status), 0);
      EXPECT_EQ(status.st_mode & 07777, 0600u) << name << " under umask " << mask;
    }
  }
}

TEST_F(NvmeStoreTest, RefusesADirectoryThatOthersMayWrite) {
  std::filesystem::create_directory(path());
  chmod(path().c_str(), 0777);
  const auto error = error_of([&] { NvmeStore::create(options_); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_configuration);
  EXPECT_THAT(error.message(), HasSubstr("0777"));
  chmod(path().c_str(), 01777);
  EXPECT_NO_THROW(NvmeStore::create(options_));
}

TEST_F(NvmeStoreTest, PlantedLinksAreNotFollowed) {
  const auto victim = directory_.path() / "victim";
  write_file(victim, "precious");
  const auto content = [&] { return read_file(victim); };
  std::filesystem::create_directory(path());
  std::filesystem::create_symlink(victim, path() / kLockFileName);
  EXPECT_THAT(error_of([&] { NvmeStore::create(options_); }).what(), HasSubstr("symbolic link"));
  EXPECT_EQ(content(), "precious");
  std::filesystem::remove(path() / kLockFileName);
  std::filesystem::create_symlink(victim, path() / kStateFileName);
  std::filesystem::create_symlink(victim, path() / kCommitFileName);
  EXPECT_THROW(NvmeStore::has_commit({path()}), Error);
  EXPECT_THAT(error_of([&] { NvmeStore::create(options_); }).what(), HasSubstr("symbolic link"));
  EXPECT_EQ(content(), "precious");
}

TEST_F(NvmeStoreTest, WhatHasTheNameOfAFileOfTheStoreAndIsNoneIsRefusedAndLeftAlone) {
  const auto victim = directory_.path() / "victim";
  write_file(victim, "precious");
  std::filesystem::create_directory(path());
  for (const char* name : {kLockFileName, kStateFileName, kCommitFileName}) {
    const auto planted = path() / name;
    std::filesystem::create_hard_link(victim, planted);
    EXPECT_THAT(error_of([&] { NvmeStore::create(options_); }).what(), AllOf(HasSubstr("hard links"), HasSubstr(planted.string())));
    EXPECT_EQ(read_file(victim), "precious");
    std::filesystem::remove(planted);
    ASSERT_EQ(mkfifo(planted.c_str(), 0600), 0);  // without a care, opening it waits for ever
    EXPECT_THAT(error_of([&] { NvmeStore::create(options_); }).what(), AllOf(HasSubstr("named pipe"), HasSubstr(planted.string())));
    std::filesystem::remove(planted);
    std::filesystem::create_directory(planted);
    EXPECT_THAT(error_of([&] { NvmeStore::create(options_); }).what(), AllOf(HasSubstr("directory"), HasSubstr(planted.string())));
    std::filesystem::remove(planted);
  }
  write_generation(*NvmeStore::create(options_), options_, 1);
  std::filesystem::create_hard_link(path() / kStateFileName, directory_.path() / "backup");
  EXPECT_THAT(error_of([&] { NvmeStore::open(options_); }).what(), HasSubstr("hard links"));
}

TEST_F(NvmeStoreTest, RemovingTheLockFileLetsNoSecondRunIn) {
  const auto store = NvmeStore::create(options_);
  write_generation(*store, options_, 1);
  store->commit("step 1");
  std::filesystem::remove(path() / kLockFileName);
  const auto second = error_of([&] { NvmeStore::open(options_); });
  EXPECT_EQ(second.code(), ErrorCode::busy);
  EXPECT_THAT(second.message(), HasSubstr("lock file was removed"));
  EXPECT_EQ(error_of([&] { NvmeStore::create(options_); }).code(), ErrorCode::busy);
  // Nor do the files alone, moved to a directory that nobody holds.
  auto elsewhere = options_;
  elsewhere.directories[0].path = directory_.path() / "elsewhere";
  std::filesystem::create_directory(elsewhere.directories[0].path);
  for (const char* name : {kStateFileName, kCommitFileName})
    std::filesystem::rename(path() / name, elsewhere.directories[0].path / name);
  EXPECT_EQ(error_of([&] { NvmeStore::open(elsewhere); }).code(), ErrorCode::busy);
  EXPECT_EQ(error_of([&] { NvmeStore::create(elsewhere); }).code(), ErrorCode::busy);
  EXPECT_TRUE(std::filesystem::exists(elsewhere.directories[0].path / kStateFileName));
}

TEST_F(NvmeStoreTest, TheLockFileNamesNobodyOnceItIsGivenBackAndNeverTheReaderItself) {
  auto store = NvmeStore::create(options_);
  const std::string own = std::to_string(getpid());
  EXPECT_THAT(read_file(path() / kLockFileName), HasSubstr(own));
  EXPECT_THAT(error_of([&] { NvmeStore::create(options_); }).message(), AllOf(HasSubstr("this run itself by another path"), Not(HasSubstr(own))));
  store.reset();
  EXPECT_EQ(read_file(path() / kLockFileName), "");
}

TEST_F(NvmeStoreTest, TheCapacityIsKeptAndTheRefusalSaysWhatIsMissing) {
  const uint64_t needed = store_bytes_needed(options_);
  options_.directories[0].capacity_bytes = needed - 1;
  const auto error = error_of([&] { NvmeStore::create(options_); });
  EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
  EXPECT_THAT(error.message(), HasSubstr(fmt::format("{} bytes", needed)));
  EXPECT_THAT(error.message(), HasSubstr(fmt::format("{} bytes", needed - 1)));
  EXPECT_FALSE(std::filesystem::exists(path() / kStateFileName));
  options_.directories[0].capacity_bytes = needed;
  const auto store = NvmeStore::create(options_);
  uint64_t taken = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path())) {
    if (entry.path().filename() != kLockFileName) taken += std::filesystem::file_size(entry.path());
  }
  uint64_t scratch = 0;
  for (const auto& extent : options_.scratch) scratch += round_up(extent.bytes, kBlockBytes);
  EXPECT_EQ(taken + scratch, needed);
}

TEST_F(NvmeStoreTest, AFullDiskIsRefusedAtTheStartWithNeededAndFreeBytes) {
  write_generation(*NvmeStore::create(options_), options_, 1);
  options_.state.push_back({"far too large", uint64_t{1} << 49});
  const auto error = error_of([&] { NvmeStore::create(options_); });
  EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
  EXPECT_THAT(error.where(), HasSubstr(fmt::format("{} bytes", store_bytes_needed(options_))));
  EXPECT_THAT(error.where(), HasSubstr("free are"));
  EXPECT_TRUE(std::filesystem::exists(path() / kCommitFileName)) << "a refusal must not take the old store away";
}

TEST_F(NvmeStoreTest, ExtentsAreDealtToSeveralDirectoriesAndEachIsTiedToTheStore) {
  options_.directories = {{directory_.path() / "a", 0}, {directory_.path() / "b", 0}, {directory_.path() / "c", 0}};
  options_.state.clear();
  for (int i = 0; i < 12; ++i) options_.state.push_back({fmt::format("extent {}", i), (64u << 10) + i});
  const auto paths = std::vector<std::filesystem::path>{directory_.path() / "a", directory_.path() / "b", directory_.path() / "c"};
  {
    const auto store = NvmeStore::create(options_);
    write_generation(*store, options_, 1);
    store->commit("one");
    for (const auto& path : paths) EXPECT_GT(std::filesystem::file_size(path / kStateFileName), 500u << 10) << path;
  }
  EXPECT_TRUE(NvmeStore::has_commit(paths));
  {
    const auto store = NvmeStore::open(options_);
    expect_generation(*store, options_, 1);
    EXPECT_THAT(store->verify({}), ::testing::IsEmpty());
  }
  expect_generation(*NvmeStore::open_read_only(paths), options_, 1);
  EXPECT_THAT(error_of([&] { NvmeStore::inspect(paths[1]); }).message(), HasSubstr("directory 2 of 3"));

  auto swapped = options_;
  for (const auto& [a, b] : {std::pair{1, 2}, std::pair{0, 1}}) {
    std::swap(swapped.directories[a], swapped.directories[b]);
    expect_generation(*NvmeStore::open(swapped), swapped, 1);
  }
  EXPECT_TRUE(NvmeStore::has_commit({paths[2], paths[0], paths[1]}));
  EXPECT_EQ(NvmeStore::inspect({paths[2], paths[0], paths[1]}).generation, 1u);
  EXPECT_EQ(NvmeStore::open_read_only({paths[2], paths[0], paths[1]})->directories(), paths);
  EXPECT_EQ(error_of([&] { NvmeStore::has_commit({paths[1], paths[0]}); }).code(), ErrorCode::invalid_data);
  auto fewer = options_;
  fewer.directories.pop_back();
  EXPECT_THAT(error_of([&] { NvmeStore::open(fewer); }).message(), HasSubstr("spans 3 directories, 2 are listed"));
  auto twice = options_;
  twice.directories[1] = twice.directories[0];
  EXPECT_EQ(error_of([&] { NvmeStore::create(twice); }).code(), ErrorCode::invalid_configuration);

  std::filesystem::copy_file(paths[0] / kStateFileName, paths[2] / kStateFileName, std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(error_of([&] { NvmeStore::open(options_); }).message(), HasSubstr("part 1 of 3 of this store"));
}

TEST_F(NvmeStoreTest, DirectoriesAreFilledByWeightAndCapacity) {
  options_.directories = {{directory_.path() / "a", 0, 3.0}, {directory_.path() / "b", 0, 1.0}};
  options_.state.assign(40, {"same", 4096});
  options_.scratch.clear();
  NvmeStore::create(options_);
  EXPECT_NEAR(static_cast<double>(std::filesystem::file_size(directory_.path() / "a" / kStateFileName)), 61 * 4096, 2 * 4096);
  EXPECT_NEAR(static_cast<double>(std::filesystem::file_size(directory_.path() / "b" / kStateFileName)), 21 * 4096, 2 * 4096);
  options_.directories[0].capacity_bytes = 300 << 10;  // of which the commit file takes most
  options_.directories[1].capacity_bytes = 300 << 10;
  NvmeStore::create(options_);
  EXPECT_GT(std::filesystem::file_size(directory_.path() / "b" / kStateFileName), 41u * 4096);
}

TEST_F(NvmeStoreTest, TenThousandTinyExtentsWithLongNamesAreOneStore) {
  options_.state.clear();
  for (int i = 0; i < 10'000; ++i) options_.state.push_back({fmt::format("tensor {}", i), 1 + static_cast<uint64_t>(i % 8)});
  options_.state[17].name = std::string(4000, 'n');
  {
    const auto store = NvmeStore::create(options_);
    std::vector<AlignedBuffer> buffers;
    std::vector<testing::Completion> completions(options_.state.size());
    for (uint32_t i = 0; i < options_.state.size(); ++i) {
      buffers.emplace_back(options_.state[i].bytes);
      const auto data = pattern(options_.state[i].bytes, i);
      std::copy(data.begin(), data.end(), buffers[i].data());
      store->write_state(i, buffers[i].data(), completions[i].callback());
    }
    for (auto& completion : completions) completion.wait();
    store->commit("all");
  }
  EXPECT_EQ(NvmeStore::inspect(path()).state[17].name, std::string(4000, 'n'));
  const auto store = NvmeStore::open(options_);
  for (uint32_t i = 0; i < options_.state.size(); i += 97) {
    EXPECT_TRUE(testing::read(*store, i, options_.state[i].bytes) == pattern(options_.state[i].bytes, i));
  }
}

TEST_F(NvmeStoreTest, OffsetsBeyondFourGibibytesAreExact) {
  struct statvfs status {};
  ASSERT_EQ(statvfs(directory_.path().c_str(), &status), 0);
  if (status.f_bavail * status.f_frsize < (uint64_t{12} << 30)) GTEST_SKIP() << "needs 12 GiB of free space to reserve";
  options_.state = {{"first", 8192}, {"huge", (uint64_t{5} << 30) / 2}, {"behind it", 70'000}};
  {
    const auto store = NvmeStore::create(options_);
    testing::write(*store, 0, pattern(8192, 1));
    testing::write(*store, 2, pattern(70'000, 2));
    store->commit("one");
    testing::write(*store, 2, pattern(70'000, 3));
    store->commit("two");
  }
  const auto store = NvmeStore::open(options_);
  EXPECT_TRUE(testing::read(*store, 0, 8192) == pattern(8192, 1));
  EXPECT_TRUE(testing::read(*store, 2, 70'000) == pattern(70'000, 3));
}

TEST_F(NvmeStoreTest, SizesAroundChunksAndBlocksRoundTrip) {
  options_.state.clear();
  for (const uint64_t chunk : {4096u, 1u << 20}) {
    for (const int64_t extra : {-4095, -1, 0, 1, 511, 4096, 4097}) {
      options_.state.push_back({fmt::format("{}{:+}", chunk, extra), chunk + static_cast<uint64_t>(extra)});
    }
  }
  options_.state.push_back({"large", (16u << 20) + 511});
  const auto store = NvmeStore::create(options_);
  write_generation(*store, options_, 1);
  store->commit("");
  expect_generation(*store, options_, 1);
}

TEST_F(NvmeStoreTest, TwentyRunsInOneDirectoryLeaveNoDescriptorThreadOrFile) {
  const auto count = [](const std::filesystem::path& place) {
    return std::distance(std::filesystem::directory_iterator(place), std::filesystem::directory_iterator());
  };
  std::optional<std::vector<std::ptrdiff_t>> first;
  for (int run = 0; run < 20; ++run) {
    {
      const auto store = run % 3 == 0 ? NvmeStore::create(options_) : NvmeStore::open(options_);
      testing::write(*store, 0, pattern(1, 5));
      testing::write(*store, 0, pattern(100, 5), Part::scratch);
      store->commit("");
    }
    const std::vector<std::ptrdiff_t> now = {count("/proc/self/fd"), count("/proc/self/task"), count(path())};
    if (!first) first = now;
    EXPECT_EQ(now, *first) << "descriptors, threads, files after run " << run;
  }
}

TEST_F(NvmeStoreTest, MisuseIsAnErrorThatNamesTheExtent) {
  const auto store = NvmeStore::create(options_);
  const auto error = error_of([&] { testing::read(*store, 1, 4096); });
  EXPECT_EQ(error.code(), ErrorCode::internal);
  EXPECT_THAT(error.message(), HasSubstr("state of 4096 bytes"));
  EXPECT_THROW(testing::read(*store, 99, 1), Error);
  EXPECT_THROW(store->commit(std::string(kRecordBytesMax + 1, 'x')), Error);
  EXPECT_NO_THROW(store->commit(std::string(kRecordBytesMax, 'x')));
  AlignedBuffer buffer(4096);
  std::promise<ErrorCode> inside;
  store->write_state(0, buffer.data(), [&](std::exception_ptr) { inside.set_value(error_of([&] { store->commit(""); }).code()); });
  EXPECT_EQ(inside.get_future().get(), ErrorCode::internal) << "a commit from a callback would wait for itself";
  auto wrong = options_;
  wrong.directories.clear();
  EXPECT_EQ(error_of([&] { NvmeStore::create(wrong); }).code(), ErrorCode::invalid_configuration);
  wrong = options_;
  wrong.state[0].bytes = 0;
  EXPECT_EQ(error_of([&] { NvmeStore::create(wrong); }).code(), ErrorCode::invalid_configuration);
}

TEST_F(NvmeStoreTest, ManyReadsOfOneExtentMayBeInFlight) {
  constexpr uint64_t kBytes = 8u << 20;  // long enough that the second read starts before the first has ended
  options_.state.assign(1, {"wanted twice", kBytes});
  const auto store = NvmeStore::create(options_);
  for (uint64_t generation = 1; generation <= 3; ++generation) {
    testing::write(*store, 0, pattern(kBytes, generation));
    AlignedBuffer first(kBytes), second(kBytes), third(kBytes);
    testing::Completion done[3];
    for (int i = 0; i < 3; ++i) store->read_state(0, (i == 0 ? first : i == 1 ? second : third).data(), done[i].callback());
    for (testing::Completion& one : done) one.wait();
    for (const AlignedBuffer* buffer : {&first, &second, &third}) {
      EXPECT_TRUE(std::equal(buffer->data(), buffer->data() + kBytes, pattern(kBytes, generation).data()));
    }
    store->commit("");
  }
}

TEST_F(NvmeStoreTest, TransfersFromManyThreadsStayApart) {
  options_.state.assign(32, {"mine", 200'000});
  const auto store = NvmeStore::create(options_);
  for (uint64_t generation = 1; generation <= 3; ++generation) {
    std::vector<std::thread> threads;
    for (uint32_t worker = 0; worker < 4; ++worker) {
      threads.emplace_back([&, worker] {
        for (uint32_t i = worker; i < 32; i += 4) {
          testing::write(*store, i, pattern(200'000, seed_of(i, generation)));
          EXPECT_TRUE(testing::read(*store, i, 200'000) == pattern(200'000, seed_of(i, generation)));
        }
      });
    }
    for (auto& thread : threads) thread.join();
    store->commit("");
  }
  expect_generation(*store, options_, 3);
}

TEST_F(NvmeStoreTest, ClosingWithTransfersInFlightCallsEveryCallback) {
  options_.state.assign(64, {"many", 1u << 20});
  AlignedBuffer buffer(1u << 20);
  std::atomic<int> called{0}, failed{0};
  {
    const auto store = NvmeStore::create(options_);
    for (uint32_t i = 0; i < 64; ++i) {
      store->write_state(i, buffer.data(), [&](std::exception_ptr error) {
        ++called;
        if (error) ++failed;
      });
    }
  }
  EXPECT_EQ(called, 64);
  std::cout << failed << " of 64 were cancelled\n";
}

}  // namespace
}  // namespace strata::tiers
