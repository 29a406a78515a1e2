// The run directory and its disk: what is refused before the first step, and what a disk that fills in the middle leaves whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

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
  int64_t last_step_ = 0;  // of the newest run
};

TEST_F(RunDirectory, ANameThatIsTakenByAnotherKindOfFileIsRefusedAtStart) {
  const fs::path path = directory_ / "run";
  for (const char* name : {"metrics.jsonl", "trace.json", "plan.json", "config.json"}) {
    fs::create_directories(path / name);
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
  const uint64_t planned = checkpoint_bytes(plan_run(config_).plan);
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
    for (const fs::path& one : paths)
      EXPECT_EQ(fs::status(one).permissions(), fs::is_directory(one) ? fs::perms::owner_all : fs::perms::owner_read | fs::perms::owner_write)
          << one;
  }
}

TEST_F(RunDirectory, AModelThatGoesAwayIsNamedByTheCheckpointThatNeedsItsFiles) {
  config_.placement = {Tier::nvme, Tier::nvme, Tier::nvme, ActivationPolicy::recompute};
  EXPECT_THAT(refusal(directory_ / "run", [&](int64_t step) { if (step == 2) fs::remove_all(directory_ / "model"); }),
              AllOf(HasSubstr("the checkpoint of step 7"), HasSubstr((directory_ / "model").string()), HasSubstr("No such file"),
                    HasSubstr("try:")));
}

}  // namespace
}  // namespace strata::scheduler
