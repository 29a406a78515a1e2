// The run directory and its disk: what is refused before the first step, and what a disk that fills in the middle leaves whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <map>

#include "core/error.hpp"
#include "scheduler/checkpoint.hpp"
#include "scheduler/run_marker.hpp"
#include "scheduler/runtime.hpp"
#include "tests/scheduler/training_fixture.hpp"
#include "tests/support/files.hpp"
#include "tests/support/scratch_directory.hpp"

namespace strata::scheduler {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// A small disk of its own in a directory.
class SmallDisk {
 public:
  SmallDisk(fs::path path, const char* size) : path_(std::move(path)) {
    fs::create_directories(path_);
    mounted_ = mount("tmpfs", path_.c_str(), "tmpfs", 0, size) == 0;
    reason_ = std::strerror(errno);
  }
  ~SmallDisk() {
    if (mounted_) umount2(path_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  const std::string& reason() const { return reason_; }
  void enlarge(const char* size) const { ASSERT_EQ(mount("tmpfs", path_.c_str(), "tmpfs", MS_REMOUNT, size), 0); }
  /// Fills it but for `left` bytes.
  void fill(uint64_t left) const {
    write_file(path_ / "filler", std::string(fs::space(path_).available - left, 'x'));
  }

 private:
  const fs::path path_;
  bool mounted_ = false;
  std::string reason_;
};

class RunDirectory : public testing::Test {
 protected:
  RunDirectory() {
    write_random_model(directory_.path(), kTinyTiedLlama);
    write_text(directory_ / "text.txt", 60000);
    config_ = tiny_config(directory_.path(), 20);
    config_.checkpoint = {.every = 7, .keep = 2};
  }

  TrainSummary run(const fs::path& run_directory, const std::function<void(int64_t step)>& on_step = {}) {
    TrainOptions options;
    options.config = config_;
    options.run_directory = run_directory;
    options.resume = resume_;
    options.discard = discard_;
    options.hash_state = true;
    options.on_step = [&](const StepReport& report) {
      last_step_ = report.step;
      if (on_step) on_step(report.step);
    };
    last_step_ = 0;
    return train(options);
  }
  std::string refusal(const fs::path& run_directory, const std::function<void(int64_t step)>& on_step = {}) {
    try {
      run(run_directory, on_step);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }

  ScratchDirectory directory_{disk_of_the_build()};
  Config config_;
  bool resume_ = true;
  std::vector<std::string> discard_;
  int64_t last_step_ = 0;  // of the newest run
};

TEST_F(RunDirectory, ANameThatIsTakenByAnotherKindOfFileIsRefusedAtStart) {
  const fs::path path = directory_ / "run";
  for (const char* name : {"metrics.jsonl", "trace.json", "plan.json", "config.json"}) {
    fs::create_directories(path / name);
    RunMarker::make().write(path);
    EXPECT_THAT(refusal(path), AllOf(HasSubstr((path / name).string()), HasSubstr("--run-dir")));
    fs::remove_all(path / name);
  }
  write_file(path / "checkpoints", "x");
  EXPECT_THAT(refusal(path), HasSubstr((path / "checkpoints").string()));
  EXPECT_EQ(last_step_, 0);
}

TEST_F(RunDirectory, ADiskWithoutRoomForTheCheckpointsIsRefusedAtStart) {
  const SmallDisk disk(directory_ / "small", "size=4m");
  if (!disk.mounted()) GTEST_SKIP() << "cannot mount a small tmpfs here: " << disk.reason();
  EXPECT_THAT(refusal(directory_ / "small/run"),
              AllOf(HasSubstr("3 of"), HasSubstr("need"), HasSubstr("free"), HasSubstr("checkpoint.keep")));
  EXPECT_EQ(last_step_, 0);
  config_.checkpoint = {.every = 0, .keep = 1};
  EXPECT_EQ(run(directory_ / "small/run").steps_done, 20);
}

TEST_F(RunDirectory, ACheckpointTakesWhatWasPlannedForIt) {
  const TrainSummary summary = run(directory_ / "run");
  uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(summary.checkpoint))
    if (entry.is_regular_file()) bytes += (entry.file_size() / 4096 + 1) * 4096;
  const uint64_t planned = checkpoint_bytes(plan_run(config_).plan, false);
  EXPECT_GE(planned, bytes);
  EXPECT_LT(planned, bytes + (256 << 10));
}

TEST_F(RunDirectory, ARefusedRunLeavesNoEmptyDirectory) {
  config_.data.train = {directory_ / "nowhere.txt"};
  EXPECT_THAT(refusal(directory_ / "run"), HasSubstr("nowhere.txt"));
  EXPECT_FALSE(fs::exists(directory_ / "run"));
  fs::create_directory(directory_ / "run");
  EXPECT_THAT(refusal(directory_ / "run"), HasSubstr("nowhere.txt"));
  EXPECT_TRUE(fs::exists(directory_ / "run"));
}

TEST_F(RunDirectory, ADiskThatFillsInMidRunLeavesTheLastStateWhole) {
  const std::string whole = run(directory_ / "whole").state_hash;
  for (const bool in_store : {false, true}) {
    SmallDisk disk(directory_ / "small", "size=8m");
    if (!disk.mounted()) GTEST_SKIP() << "cannot mount a small tmpfs here: " << disk.reason();
    // State in memory fails in the next checkpoint; state in the store, whose checkpoints are small, in the metrics.
    if (in_store) config_.placement = {Tier::nvme, Tier::nvme, Tier::nvme, ActivationPolicy::recompute};
    const fs::path path = directory_ / "small/run";
    EXPECT_THAT(refusal(path, [&](int64_t step) { if (step == 10) disk.fill(in_store ? 0 : 512 << 10); }),
                AllOf(HasSubstr(in_store ? "metrics" : "the checkpoint of step 14"), HasSubstr("No space left"), HasSubstr("free space"),
                      HasSubstr("the same command then continues")));
    const int64_t stopped_after = last_step_;
    EXPECT_LT(stopped_after, 20);
    EXPECT_FALSE(fs::exists(path / "checkpoints/step-00000014.partial"));
    disk.enlarge("size=64m");
    const TrainSummary rest = run(path);
    EXPECT_GE(rest.resumed_from, in_store ? stopped_after - 1 : 7);
    EXPECT_EQ(rest.state_hash, whole) << (in_store ? "store" : "files");
  }
}

TEST_F(RunDirectory, TheMarkerNamesTheRunInItsCheckpointsAndStaysWhatItIs) {
  config_.checkpoint = {.every = 0, .keep = 1};
  config_.steps = 1;
  const TrainSummary first = run(directory_ / "run");
  const std::string marker = read_file(directory_ / "run/run.json");
  const std::string id = RunMarker::read(directory_ / "run")->run_id;
  EXPECT_EQ(id.size(), 32u);
  EXPECT_EQ(read_checkpoint_info(first.checkpoint).record.run_id, id);
  config_.steps = 2;
  EXPECT_EQ(read_checkpoint_info(run(directory_ / "run").checkpoint).record.run_id, id);
  EXPECT_EQ(read_file(directory_ / "run/run.json"), marker);
  config_.steps = 1;
  run(directory_ / "other");
  EXPECT_NE(RunMarker::read(directory_ / "other")->run_id, id);
  for (const char* text : {"{", "[]", "{\"format\": 1}", "{\"format\": \"strata-run\", \"version\": 1, \"run_id\": \"../x\"}"}) {
    write_file(directory_ / "run/run.json", text);
    EXPECT_THAT(refusal(directory_ / "run"), HasSubstr((directory_ / "run/run.json").string())) << text;
    EXPECT_EQ(read_file(directory_ / "run/run.json"), text);
  }
}

TEST_F(RunDirectory, EverythingThatARunMakesIsItsUsersAloneWhateverTheUmask) {
  config_.placement = {Tier::nvme, Tier::nvme, Tier::nvme, ActivationPolicy::recompute};
  for (const bool in_store : {true, false}) {
    if (!in_store) config_.placement = {Tier::device, Tier::device, Tier::device, ActivationPolicy::device};
    const fs::path path = directory_ / (in_store ? "store-run" : "run");
    const mode_t before = umask(0);
    run(path);
    EXPECT_EQ(umask(before), 0u) << "the umask was not put back";
    std::vector<fs::path> paths = {path, directory_ / "nvme"};
    for (const fs::path& root : {path, directory_ / "nvme"})
      for (const auto& entry : fs::recursive_directory_iterator(root)) paths.push_back(entry.path());
    constexpr fs::perms kFile = fs::perms::owner_read | fs::perms::owner_write;
    for (const fs::path& one : paths)
      EXPECT_EQ(fs::status(one).permissions(), fs::is_directory(one) ? fs::perms::owner_all : kFile) << one;
  }
}

/// Names, sizes and contents below a directory.
std::map<std::string, std::string> contents(const fs::path& directory) {
  std::map<std::string, std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    if (entry.is_regular_file()) found[entry.path().string()] = read_file(entry.path());
  return found;
}

TEST_F(RunDirectory, ADirectoryOfSomethingElseIsRefusedAndNothingInItChanges) {
  const fs::path model = directory_ / "model", notes = directory_ / "notes", other = directory_ / "other";
  fs::create_directory(notes);
  write_file(notes / "thesis.txt", "precious");
  fs::create_directories(other / "checkpoints/step-1");  // of another program
  write_file(other / "metrics.jsonl", "{\"step\": 1, \"train_loss\": 2}\n");
  for (const fs::path& path : {model, notes, other}) {
    const auto before = contents(path);
    for (const bool resume : {true, false}) {
      resume_ = resume;
      EXPECT_THAT(refusal(path), AllOf(HasSubstr("something else"), HasSubstr(path.string()), HasSubstr("--run-dir")));
    }
    EXPECT_EQ(contents(path), before);
    EXPECT_FALSE(fs::exists(path / "strata.lock"));
  }
  EXPECT_THAT(refusal(model), HasSubstr("a model: config.json, model.safetensors"));
  EXPECT_THAT(refusal(notes), HasSubstr("thesis.txt"));
  write_file(notes / "run.json", "{}");
  EXPECT_THAT(refusal(notes), HasSubstr("run.json"));
  EXPECT_FALSE(fs::exists(notes / "strata.lock"));
}

TEST_F(RunDirectory, AnEmptyDirectoryMayHoldTheStoresDirectoryAndALockAlready) {
  config_.placement = {Tier::nvme, Tier::nvme, Tier::nvme, ActivationPolicy::recompute};
  config_.steps = 1;
  fs::create_directories(directory_ / "run/drives/a");
  fs::permissions(directory_ / "run/drives/a", fs::perms::owner_all);
  write_file(directory_ / "run/strata.lock", "");
  config_.tiers.nvme = {{directory_ / "run/drives/a", 1ull << 30}};
  EXPECT_EQ(run(directory_ / "run").steps_done, 1);
  config_.tiers.nvme = {{directory_ / "same", 1ull << 30}};
  fs::create_directories(directory_ / "same");
  EXPECT_THAT(refusal(directory_ / "same"), AllOf(HasSubstr("NVMe store, too"), HasSubstr("same/nvme")));
}

TEST_F(RunDirectory, ARunOfAVersionWithoutMarkersIsContinuedAndMarked) {
  config_.steps = 7;
  const std::string id = read_checkpoint_info(run(directory_ / "run").checkpoint).record.run_id;
  for (const char* name : {"run.json", "session.json"}) fs::remove(directory_ / "run" / name);
  config_.steps = 8;
  EXPECT_EQ(run(directory_ / "run").resumed_from, 7);
  EXPECT_EQ(RunMarker::read(directory_ / "run")->run_id, id) << "its checkpoints name it";
}

TEST_F(RunDirectory, StartingOverLosesOnlyWhatIsNamed) {
  config_.steps = 7;
  run(directory_ / "run");
  const std::string id = RunMarker::read(directory_ / "run")->run_id;
  const auto before = contents(directory_ / "run/checkpoints");
  const std::string metrics = read_file(directory_ / "run/metrics.jsonl");
  resume_ = false;
  for (const std::vector<std::string>& names : std::vector<std::vector<std::string>>{{}, {"another"}, {""}}) {
    discard_ = names;
    EXPECT_THAT(refusal(directory_ / "run"),
                AllOf(HasSubstr("the run \"run\" (" + (directory_ / "run").string() + "): 7 steps"), HasSubstr("step-00000007"),
                      HasSubstr("--discard run")));
    EXPECT_EQ(contents(directory_ / "run/checkpoints"), before);
    EXPECT_EQ(read_file(directory_ / "run/metrics.jsonl"), metrics);
  }
  for (const bool by_id : {false, true}) {
    discard_ = {by_id ? RunMarker::read(directory_ / "run")->run_id : "run"};
    EXPECT_EQ(run(directory_ / "run").resumed_from, 0);
    EXPECT_NE(RunMarker::read(directory_ / "run")->run_id, id) << "it is another run";
  }
  resume_ = true;
  EXPECT_THAT(refusal(directory_ / "run"), HasSubstr("--discard"));
}

TEST_F(RunDirectory, AnotherRunsStoreIsLostOnlyWhenThatRunIsNamed) {
  config_.placement = {Tier::nvme, Tier::nvme, Tier::nvme, ActivationPolicy::recompute};
  config_.steps = 3;
  const std::string hash = run(directory_ / "a").state_hash;
  const std::string text = refusal(directory_ / "b");
  EXPECT_THAT(text, AllOf(HasSubstr("another run: \"a\" (" + (directory_ / "a").string() + ") at step 3"), HasSubstr("--discard a")));
  EXPECT_FALSE(fs::exists(directory_ / "b"));
  resume_ = false;
  EXPECT_THAT(refusal(directory_ / "b"), AllOf(HasSubstr("step 3 of the run \"a\""), HasSubstr("generation"), HasSubstr("--discard a")));
  resume_ = true;
  EXPECT_EQ(run(directory_ / "a").state_hash, hash);
  fs::create_directories(directory_ / "elsewhere");
  resume_ = false;
  discard_ = {"a"};
  EXPECT_EQ(run(directory_ / "elsewhere/a").steps_done, 3);
  resume_ = true;
  discard_ = {};
  EXPECT_THAT(refusal(directory_ / "a"), HasSubstr("another run: \"a\" (" + (directory_ / "elsewhere/a").string()));
  // Here are two runs of one name, which that name does not tell apart.
  resume_ = false;
  discard_ = {"a"};
  EXPECT_THAT(refusal(directory_ / "a"), AllOf(HasSubstr("--discard " + (directory_ / "a").string()),
                                              HasSubstr("--discard " + (directory_ / "elsewhere/a").string())));
}

TEST_F(RunDirectory, APlantedLinkOrPipeIsRefusedWithoutWaitingAndLeftAlone) {
  const fs::path path = directory_ / "run", victim = directory_ / "victim";
  config_.steps = 1;
  run(path);
  write_file(victim, "precious");
  config_.steps = 2;
  for (const char* name : {"strata.lock", "run.json", "session.json", "config.json", "plan.json", "metrics.jsonl", "trace.json"}) {
    fs::rename(path / name, directory_ / "aside");
    fs::create_symlink(victim, path / name);
    EXPECT_THAT(refusal(path), HasSubstr((path / name).string())) << name;
    fs::remove(path / name);
    fs::create_symlink(directory_ / "nowhere", path / name);
    EXPECT_THAT(refusal(path), HasSubstr((path / name).string())) << name;
    fs::remove(path / name);
    fs::create_hard_link(victim, path / name);
    EXPECT_THAT(refusal(path), HasSubstr((path / name).string())) << name;
    fs::remove(path / name);
    ASSERT_EQ(mkfifo((path / name).c_str(), 0600), 0);
    EXPECT_THAT(refusal(path), HasSubstr((path / name).string())) << name;
    fs::remove(path / name);
    EXPECT_EQ(read_file(victim), "precious") << name;
    EXPECT_FALSE(fs::exists(directory_ / "nowhere"));
    fs::rename(directory_ / "aside", path / name);
  }
  EXPECT_EQ(run(path).steps_done, 2);
}

TEST_F(RunDirectory, RemovingTheLockFileLetsNoSecondRunIn) {
  config_.steps = 2;
  std::string second;
  run(directory_ / "run", [&](int64_t step) {
    if (step != 1) return;
    fs::remove(directory_ / "run/strata.lock");
    TrainOptions options;
    options.config = config_;
    options.run_directory = directory_ / "run";
    try {
      train(options);
    } catch (const Error& error) {
      second = error.what();
    }
  });
  EXPECT_THAT(second, HasSubstr("lock file was removed"));
}

TEST_F(RunDirectory, AModelThatGoesAwayInTheMiddleIsNotMissed) {
  config_.placement = {Tier::nvme, Tier::nvme, Tier::nvme, ActivationPolicy::recompute};
  run(directory_ / "run", [&](int64_t step) { if (step == 2) fs::remove_all(directory_ / "model"); });
  EXPECT_EQ(last_step_, config_.steps);
  export_checkpoint(directory_ / "run", directory_ / "out");
  EXPECT_EQ(read_model_description(directory_ / "out").vocab_size, 256);
}

}  // namespace
}  // namespace strata::scheduler
