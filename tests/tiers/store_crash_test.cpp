// A store whose process dies, or whose drive loses power, before the k-th I/O operation, for every k: what is found afterwards is
// exactly a committed generation, the last one whose commit returned or the one that was being committed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/files.hpp"
#include "tests/support/scratch_directory.hpp"
#include "tests/tiers/faulty_io_engine.hpp"
#include "tests/tiers/simulated_drive.hpp"
#include "tests/tiers/store_driver.hpp"
#include "tiers/nvme_store.hpp"

namespace strata::tiers {
namespace {

using testing::pattern;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kGenerations = 3;

/// Small enough for hundreds of runs, with extents of one sector, of one block and of several chunks.
struct Scenario {
  explicit Scenario(const std::filesystem::path& path, size_t directories) {
    for (size_t i = 0; i < directories; ++i) options.directories.push_back({path / fmt::format("d{}", i), 0});
    options.fingerprint = "crash";
    options.state = {{"a", 100}, {"b", 4096}, {"c", 9000}, {"d", 512}};
    options.scratch = {{"s", 5000}};
    hooks.transfers.chunk_bytes = 4096;
    hooks.transfers.queue_depth = 4;
    hooks.transfers.shutdown_grace = std::chrono::milliseconds(50);
  }

  /// Generation g writes all extents in the first generation, afterwards all but one; a discarded attempt comes before each commit.
  static bool writes(uint32_t extent, uint64_t generation) { return generation == 1 || extent != generation % 4; }
  uint64_t newest_write(uint32_t extent, uint64_t generation) const {
    while (!writes(extent, generation)) --generation;
    return generation;
  }
  std::vector<std::byte> content(uint32_t extent, uint64_t generation) const {
    return pattern(options.state[extent].bytes, newest_write(extent, generation) * 100 + extent);
  }

  /// Several sectors long, so that it can be torn.
  static std::string record(uint64_t generation) {
    return fmt::format("generation {} ", generation) + std::string(3000, static_cast<char>('a' + generation));
  }

  void run(NvmeStore& store, const std::function<void(uint64_t)>& committed) const {
    for (uint64_t generation = store.generation() + 1; generation <= kGenerations; ++generation) {
      if (generation > 1) {
        testing::write(store, 1, pattern(4096, 999));
        store.discard();
      }
      for (uint32_t i = 0; i < options.state.size(); ++i) {
        if (writes(i, generation)) testing::write(store, i, content(i, generation));
      }
      testing::write(store, 0, pattern(5000, generation), testing::Part::scratch);
      testing::read(store, 0, 5000, testing::Part::scratch);
      testing::read(store, 2, 9000);
      store.commit(record(generation));
      committed(generation);
    }
  }

  /// Opens with whole engines and compares everything. Returns the generation found, 0 when nothing was committed.
  uint64_t examine() const {
    std::vector<std::filesystem::path> paths;
    for (const auto& directory : options.directories) paths.push_back(directory.path);
    if (!NvmeStore::has_commit(paths)) return 0;
    const auto store = NvmeStore::open(options);
    const uint64_t generation = store->generation();
    EXPECT_EQ(store->record(), record(generation));
    for (uint32_t i = 0; i < options.state.size(); ++i) {
      EXPECT_TRUE(testing::read(*store, i, options.state[i].bytes) == content(i, generation)) << "extent " << i;
    }
    // A record that was being written is torn: that is told, and it is all.
    for (const std::string& line : store->verify({})) EXPECT_THAT(line, AllOf(HasSubstr("commit record"), HasSubstr("is damaged")));
    return generation;
  }

  /// And goes on from there to the end.
  void finish() const {
    {
      const auto store = NvmeStore::open(options);
      run(*store, [](uint64_t) {});
    }
    EXPECT_EQ(examine(), kGenerations);
  }

  StoreOptions options;
  StoreHooks hooks;
};

class StoreCrash : public ::testing::TestWithParam<size_t> {};

TEST_P(StoreCrash, APowerCutBeforeAnyRequestLeavesExactlyACommit) {
  const uint64_t seed = 20'240'517;
  std::cout << "seed " << seed << " + k\n";
  uint64_t cuts = 0;
  for (uint64_t k = 0;; k += GetParam() == 1 ? 1 : 2) {
    SCOPED_TRACE(fmt::format("cut before request {}", k));
    const ScratchDirectory directory("/dev/shm");
    Scenario scenario(directory.path(), GetParam());
    testing::SimulatedDrive drive(k, seed + k);
    scenario.hooks.engine_factory = drive.factory();
    uint64_t committed = 0;
    try {
      const auto store = create_store(scenario.options, scenario.hooks);
      scenario.run(*store, [&](uint64_t generation) { committed = generation; });
    } catch (const Error&) {
      ASSERT_TRUE(drive.cut());
    }
    const uint64_t found = scenario.examine();
    EXPECT_GE(found, committed);
    EXPECT_LE(found, committed + 1);
    if (found > 0 && k % 7 == 0) scenario.finish();
    if (!drive.cut()) break;
    ++cuts;
    ASSERT_FALSE(HasFailure());
    ASSERT_LT(k, 1000u);
  }
  EXPECT_GT(cuts, 20u);
}

INSTANTIATE_TEST_SUITE_P(Directories, StoreCrash, ::testing::Values(1, 3),
                         [](const auto& info) { return info.param == 1 ? "One" : "Three"; });

/// Ends the process when its n-th request comes.
IoEngineFactory dying(uint64_t nth, IoEngineKind kind) {
  class DyingEngine final : public IoEngine {
   public:
    DyingEngine(std::unique_ptr<IoEngine> inner, uint64_t left) : inner_(std::move(inner)), left_(left) {}
    void submit(std::span<const IoRequest> requests) override {
      for (const auto& request : requests) {
        if (left_-- == 0) _exit(42);
        inner_->submit({&request, 1});
      }
    }
    size_t wait(std::span<IoCompletion> completions, std::chrono::microseconds timeout) override {
      return inner_->wait(completions, timeout);
    }
    void wake() override { inner_->wake(); }
    void cancel(uint64_t tag) override { inner_->cancel(tag); }
    std::string describe() const override { return inner_->describe(); }

   private:
    std::unique_ptr<IoEngine> inner_;
    uint64_t left_;
  };
  return [nth, kind](IoEngineConfig config) -> std::unique_ptr<IoEngine> {
    config.kind = kind;
    return std::make_unique<DyingEngine>(make_io_engine(config), nth);
  };
}

TEST(StoreKill, AProcessThatDiesAtAnyRequestLeavesExactlyACommit) {
  for (const auto kind : {IoEngineKind::threads, IoEngineKind::automatic}) {
    bool died = true;
    // Every request on threads and in memory; the engines differ only below the transfer layer, so some on the drive with the other.
    const bool all = kind == IoEngineKind::threads;
    for (uint64_t k = 0; died; k += all ? 1 : 5) {
      SCOPED_TRACE(fmt::format("dies at request {}", k));
      ASSERT_LT(k, 1000u);
      const ScratchDirectory directory(all ? "/dev/shm" : std::filesystem::temp_directory_path());
      Scenario scenario(directory.path(), 1);
      scenario.hooks.engine_factory = dying(k, kind);
      int report[2];
      ASSERT_EQ(pipe(report), 0);
      const pid_t child = fork();
      if (child == 0) {
        const auto store = create_store(scenario.options, scenario.hooks);
        scenario.run(*store, [&](uint64_t generation) {
          if (write(report[1], &generation, sizeof generation) != sizeof generation) _exit(1);
        });
        _exit(0);
      }
      close(report[1]);
      uint64_t committed = 0, next = 0;
      while (read(report[0], &next, sizeof next) == sizeof next) committed = next;
      close(report[0]);
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      ASSERT_TRUE(WIFEXITED(status) && (WEXITSTATUS(status) == 42 || WEXITSTATUS(status) == 0));
      died = WEXITSTATUS(status) == 42;
      const uint64_t found = scenario.examine();
      EXPECT_GE(found, committed);
      EXPECT_LE(found, committed + 1);
      if (!died) {
        EXPECT_EQ(found, kGenerations);
      }
      ASSERT_FALSE(::testing::Test::HasFailure());
    }
  }
}

TEST(StoreKill, AnInterruptedCreationIsNoStoreAndIsReplaced) {
  const ScratchDirectory directory;
  const Scenario scenario(directory.path(), 2);
  NvmeStore::create(scenario.options);
  // As if the process had died before the commit file got its name.
  const auto first = scenario.options.directories[0].path;
  std::filesystem::rename(first / "strata.commit", first / "strata.commit.new");
  EXPECT_EQ(scenario.examine(), 0u);
  EXPECT_EQ(testing::error_of([&] { NvmeStore::inspect(first); }).code(), ErrorCode::invalid_data);
  {
    const auto store = NvmeStore::create(scenario.options);
    EXPECT_FALSE(std::filesystem::exists(first / "strata.commit.new"));
    scenario.run(*store, [](uint64_t) {});
  }
  EXPECT_EQ(scenario.examine(), kGenerations);
}

TEST(StoreKill, ALostCommitFileIsNoInterruptedCreation) {
  const ScratchDirectory directory;
  const Scenario scenario(directory.path(), 2);
  scenario.run(*NvmeStore::create(scenario.options), [](uint64_t) {});
  const auto first = scenario.options.directories[0].path;
  std::filesystem::rename(first / "strata.commit", first / "strata.commit.new");
  EXPECT_EQ(testing::error_of([&] { scenario.examine(); }).code(), ErrorCode::data_corruption);
  EXPECT_EQ(testing::error_of([&] { NvmeStore::inspect(first); }).code(), ErrorCode::data_corruption);
}

TEST(StoreCopy, HoldsWhatWasCommittedAndIsOnlyRead) {
  const ScratchDirectory directory;
  Scenario scenario(directory.path(), 3);
  const std::vector<std::filesystem::path> copies = {directory.path() / "copy/2", directory.path() / "copy/0", directory.path() / "copy/1"};
  {
    const auto store = NvmeStore::create(scenario.options);
    scenario.run(*store, [](uint64_t) {});
    testing::write(*store, 1, pattern(4096, 999));  // not committed
    store->copy_committed(directory.path() / "copy", {});
  }
  auto copy = NvmeStore::open_read_only(copies);
  EXPECT_EQ(copy->generation(), kGenerations);
  EXPECT_EQ(copy->record(), Scenario::record(kGenerations));
  EXPECT_THAT(copy->verify({}), ::testing::IsEmpty());
  for (uint32_t i = 0; i < scenario.options.state.size(); ++i)
    EXPECT_TRUE(testing::read(*copy, i, scenario.options.state[i].bytes) == scenario.content(i, kGenerations)) << i;
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory.path() / "copy"))
    if (entry.is_regular_file()) bytes += entry.file_size();
  EXPECT_LE(bytes, store_copy_bytes(scenario.options));
  copy.reset();
  for (auto& path : scenario.options.directories) path.path = directory.path() / "copy" / path.path.filename().string().substr(1);
  EXPECT_THAT(testing::error_of([&] { NvmeStore::open(scenario.options); }).message(), HasSubstr("a copy"));
  EXPECT_THAT(testing::error_of([&] { NvmeStore::create(scenario.options); }).message(), HasSubstr("copy"));
}

TEST(StoreCopy, OfStateThatTheDriveHasChangedIsRefused) {
  const ScratchDirectory directory("/dev/shm");  // which cannot share bytes between files: they are read and checked
  const Scenario scenario(directory.path(), 1);
  const auto store = NvmeStore::create(scenario.options);
  scenario.run(*store, [](uint64_t) {});
  const auto file = scenario.options.directories[0].path / "strata.state";
  for (uint64_t offset = 4096; offset < std::filesystem::file_size(file); offset += 4096) flip_bit(file, offset);
  EXPECT_EQ(testing::error_of([&] { store->copy_committed(directory.path() / "copy", {}); }).code(), ErrorCode::data_corruption);
}

TEST(StoreFailure, WhicheverRequestFailsTheStoreEndsWithACommitAndGoesOn) {
  for (const int error_number : {EIO, ENOSPC}) {
    bool failed = true;
    for (uint64_t nth = 1; failed; ++nth) {
      SCOPED_TRACE(fmt::format("request {} fails with {}", nth, error_number));
      ASSERT_LT(nth, 1000u);
      const ScratchDirectory directory("/dev/shm");
      Scenario scenario(directory.path(), 1);
      // Reads survive single errors, so four in a row.
      const auto plan = std::make_shared<testing::FaultPlan>(
          std::vector<testing::Fault>{{.value = error_number, .nth = nth, .times = 4, .operation = {}, .file = {}}});
      scenario.hooks.engine_factory = testing::faulty(plan);
      uint64_t committed = 0;
      failed = false;
      try {
        const auto store = create_store(scenario.options, scenario.hooks);
        scenario.run(*store, [&](uint64_t generation) { committed = generation; });
      } catch (const Error& error) {
        failed = true;
        EXPECT_THAT(error.where(), ::testing::HasSubstr(directory.path().string()));
      }
      failed = failed || plan->injected() > 0;
      const uint64_t found = scenario.examine();
      EXPECT_GE(found, committed);
      EXPECT_LE(found, committed + 1);
      ASSERT_FALSE(::testing::Test::HasFailure());
    }
  }
}

}  // namespace
}  // namespace strata::tiers
