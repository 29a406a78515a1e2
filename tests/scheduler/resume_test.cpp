// What a run continues from: whole state of its own, or a refusal; never a damaged one, never silently nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.hpp"
#include "scheduler/checkpoint.hpp"
#include "tests/scheduler/training_fixture.hpp"
#include "tests/support/files.hpp"
#include "tests/support/scratch_directory.hpp"

namespace strata::scheduler {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Resume : public testing::Test {
 protected:
  Resume() {
    write_random_model(directory_.path(), kTinyTiedLlama);
    write_text(directory_ / "text.txt", 60000);
    config_ = tiny_config(directory_.path(), 4);
    config_.checkpoint = {.every = 2, .keep = 2};
  }

  fs::path run() const { return directory_ / "run"; }
  fs::path checkpoint(int step) const { return run() / "checkpoints" / ("step-0000000" + std::to_string(step)); }

  /// Trains to `steps` in all, continuing what is there.
  TrainSummary train_to(int64_t steps) {
    config_.steps = steps;
    TrainOptions options;
    options.config = config_;
    options.run_directory = run();
    options.hash_state = true;
    options.allow = allow_;
    options.narrate = [this](const std::string& line) { log_ += line + "\n"; };
    log_.clear();
    return train(options);
  }
  /// The text of the refusal of such a run.
  std::string refusal(int64_t steps) {
    try {
      train_to(steps);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }

  ScratchDirectory directory_{disk_of_the_build()};
  Config config_;
  std::vector<std::string> allow_;
  std::string log_;
};

TEST_F(Resume, AFlippedBitInAnyFileOfACheckpointIsFoundBeforeItIsUsed) {
  train_to(2);
  for (const auto& entry : fs::recursive_directory_iterator(checkpoint(2))) {
    if (!entry.is_regular_file() || entry.path().filename() == "checkpoint.json") continue;
    const uint64_t middle = entry.file_size() / 2;
    flip_bit(entry.path(), middle);
    EXPECT_THAT(refusal(4), AllOf(HasSubstr(entry.path().string()), HasSubstr("checksum"), Not(HasSubstr("--resume never"))));
    EXPECT_THROW(export_checkpoint(run() / "checkpoints", directory_ / "out", {}), Error) << entry.path();
    EXPECT_FALSE(fs::exists(directory_ / "out"));
    flip_bit(entry.path(), middle);
  }
  EXPECT_EQ(train_to(4).resumed_from, 2);
}

TEST_F(Resume, AnOlderWholeCheckpointTakesThePlaceOfADamagedOne) {
  const std::string whole = train_to(6).state_hash;
  fs::remove_all(run());
  for (const bool in_manifest : {false, true}) {
    train_to(4);
    flip_bit(checkpoint(4) / (in_manifest ? "checkpoint.json" : "momentum/model.safetensors"), 5000 * !in_manifest + 30);
    const TrainSummary again = train_to(6);
    EXPECT_EQ(again.resumed_from, 2);
    EXPECT_THAT(log_, AllOf(HasSubstr("ignored: " + checkpoint(4).string()), HasSubstr(checkpoint(2).string() + " at step 2")));
    EXPECT_EQ(again.state_hash, whole);
    fs::remove_all(run());
  }
}

TEST_F(Resume, ACheckpointOfAStepThatTheRunWentBackPastIsRemoved) {
  train_to(4);
  flip_bit(checkpoint(4) / "momentum/model.safetensors", 5000);
  config_.checkpoint = {.every = 1, .keep = 1};
  EXPECT_EQ(train_to(3).resumed_from, 2);
  EXPECT_TRUE(fs::exists(checkpoint(3)));
  EXPECT_FALSE(fs::exists(checkpoint(4)));
}

TEST_F(Resume, WithNoWholeCheckpointTheRunIsRefusedAndKeepsItsFiles) {
  train_to(4);
  const std::string metrics = read_file(run() / "metrics.jsonl");
  flip_bit(checkpoint(4) / "checkpoint.json", 30);
  fs::remove(checkpoint(2) / "variance/model.safetensors");
  EXPECT_THAT(refusal(6), AllOf(HasSubstr(checkpoint(4).string()), HasSubstr(checkpoint(2).string()), HasSubstr("missing"),
                                Not(HasSubstr("--resume never"))));
  EXPECT_EQ(read_file(run() / "metrics.jsonl"), metrics);
  EXPECT_TRUE(fs::exists(checkpoint(4)));
  EXPECT_EQ(run_training(config_, run(), /*resume=*/false).resumed_from, 0);
}

TEST_F(Resume, AStoreThatIsNotThereIsNotStartedOver) {
  config_.placement = {Tier::nvme, Tier::nvme, Tier::nvme, ActivationPolicy::recompute};
  const fs::path store = directory_ / "nvme", away = directory_ / "far/away";
  fs::create_directory(away.parent_path());  // not beside the run or the store, where it would be found
  train_to(4);
  const std::string metrics = read_file(run() / "metrics.jsonl");
  for (const bool checkpoint_kept : {true, false}) {
    if (!checkpoint_kept) fs::remove_all(run() / "checkpoints");  // as after a kill before the first one
    fs::rename(store, away);
    for (const bool mount_point : {false, true}) {
      if (mount_point) fs::create_directory(store);
      const std::string text = refusal(6);
      EXPECT_THAT(text, AllOf(HasSubstr("step 4"), HasSubstr(store.string()), HasSubstr("mount"), Not(HasSubstr("--resume never"))));
      EXPECT_THAT(text, Not(HasSubstr("does not name")));
      EXPECT_EQ(read_file(run() / "metrics.jsonl"), metrics);
    }
    fs::remove(store);
    fs::rename(away, store);
  }
  config_.tiers.nvme = {{directory_ / "elsewhere", 1ull << 30}};
  EXPECT_THAT(refusal(6), AllOf(HasSubstr("does not name"), HasSubstr(store.string())));
  config_.tiers.nvme = {{store, 1ull << 30}};
  EXPECT_EQ(train_to(6).resumed_from, 4);
}

TEST_F(Resume, DataOfOtherContentUnderTheSameNameAndSizeIsRefusedUnlessAllowed) {
  train_to(2);
  std::string text = read_file(directory_ / "text.txt");
  flip_bit(directory_ / "text.txt", 30000);
  EXPECT_THAT(refusal(4), AllOf(HasSubstr("text.txt"), HasSubstr("other content"), HasSubstr("--allow data.train")));
  write_file(directory_ / "text.txt", text);
  fs::rename(directory_ / "text.txt", directory_ / "moved.txt");
  config_.data.train = {directory_ / "moved.txt"};
  EXPECT_EQ(train_to(4).resumed_from, 2);
  EXPECT_THAT(log_, Not(HasSubstr("data.train")));
  flip_bit(directory_ / "moved.txt", 30000);
  allow_ = {"data"};
  EXPECT_EQ(train_to(6).resumed_from, 4);
  EXPECT_THAT(log_, HasSubstr("changed since the last session: data.train: file 1 of 1"));
  allow_.clear();
  EXPECT_EQ(train_to(8).resumed_from, 6) << "from then on it is the run's data";
}

TEST_F(Resume, AnotherModelUnderTheSamePathIsRefused) {
  train_to(2);
  const fs::path file = directory_ / "model/config.json";
  const std::string text = read_file(file);
  for (const auto& [from, to] : {std::pair{"\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 1e-06"},
                                 std::pair{"\"max_position_embeddings\": 128", "\"max_position_embeddings\": 128, \"rope_theta\": 500000"}}) {
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << text;
    write_file(file, std::string(text).replace(at, std::string(from).size(), to));
    EXPECT_THAT(refusal(4), AllOf(HasSubstr("model: "), HasSubstr("another model"))) << to;
  }
  write_file(file, text);
  EXPECT_EQ(train_to(4).resumed_from, 2);
}

TEST_F(Resume, WhatChangedSinceTheLastSessionIsTold) {
  train_to(2);
  EXPECT_THAT(log_, Not(HasSubstr("changed since")));
  config_.optimizer.lr = 1e-3;
  EXPECT_EQ(train_to(2).resumed_from, 2);
  EXPECT_THAT(log_, HasSubstr("changed since the last session: optimizer.lr 0.002 -> 0.001 (takes effect now"));
  EXPECT_THAT(log_, HasSubstr("nothing to do"));
  train_to(4);
  EXPECT_THAT(log_, AllOf(HasSubstr("changed since the last session: steps 2 -> 4"), Not(HasSubstr("optimizer.lr"))));
  EXPECT_THAT(refusal(3), HasSubstr("accepted"));
  EXPECT_THAT(log_, HasSubstr("the run is at step 4 and `steps` is 3"));
}

/// Everything in the store.
constexpr auto kAllInStore = [](Config& config) { config.placement = {Tier::nvme, Tier::nvme, Tier::nvme, ActivationPolicy::recompute}; };

TEST_F(Resume, AStoreThatWasMovedIsFoundByItsIdentityThoughAnotherRunsLiesInItsPlace) {
  kAllInStore(config_);
  const std::string whole = train_to(4).state_hash;
  fs::remove_all(run());
  fs::remove_all(directory_ / "nvme");
  train_to(2);
  fs::rename(directory_ / "nvme", directory_ / "elsewhere");
  Config other = config_;
  run_training(other, directory_ / "other");  // makes its store at the old path
  const std::string others = read_file(directory_ / "nvme/strata.commit");
  const TrainSummary again = train_to(4);
  EXPECT_EQ(again.resumed_from, 2);
  EXPECT_EQ(again.state_hash, whole);
  EXPECT_THAT(log_, AllOf(HasSubstr("has moved"), HasSubstr((directory_ / "nvme").string()), HasSubstr((directory_ / "elsewhere").string())));
  EXPECT_EQ(read_file(directory_ / "nvme/strata.commit"), others);
}

TEST_F(Resume, ARunThatWasMovedWithItsStoreContinuesAndIsExported) {
  kAllInStore(config_);
  config_.tiers.nvme = {{run() / "nvme-a", 1ull << 30}, {run() / "nvme-b", 1ull << 30}};
  train_to(2);
  fs::rename(run(), directory_ / "renamed");
  export_checkpoint(directory_ / "renamed", directory_ / "out", {});
  fs::rename(directory_ / "renamed", run());
  fs::rename(run() / "nvme-a", run() / "nvme-c");
  std::swap(config_.tiers.nvme[0], config_.tiers.nvme[1]);
  config_.tiers.nvme[1].path = run() / "nvme-c";
  EXPECT_EQ(train_to(4).resumed_from, 2);  // in whatever order its directories are listed
}

TEST_F(Resume, KeepsOlderGenerationsOfAStoreAsCopies) {
  kAllInStore(config_);
  config_.checkpoint = {.every = 1, .keep = 3};
  train_to(2);
  export_checkpoint(checkpoint(2), directory_ / "whole-2", {});
  EXPECT_TRUE(read_checkpoint_info(checkpoint(1)).copy);
  EXPECT_FALSE(read_checkpoint_info(checkpoint(2)).copy);
  train_to(4);
  EXPECT_FALSE(fs::exists(checkpoint(1)));
  for (const int step : {2, 3}) EXPECT_TRUE(read_checkpoint_info(checkpoint(step)).copy) << step;
  EXPECT_FALSE(read_checkpoint_info(checkpoint(4)).copy);
  fs::rename(directory_ / "nvme", directory_ / "away");  // the copies do not need it
  export_checkpoint(checkpoint(2), directory_ / "copied-2", {});
  EXPECT_EQ(read_file(directory_ / "copied-2/model.safetensors"), read_file(directory_ / "whole-2/model.safetensors"));
  // A copy has one slot for its state: no run may train on it.
  config_.tiers.nvme = {{checkpoint(2) / "store/0", 1ull << 30}};
  EXPECT_THAT(refusal(6), Not(HasSubstr("accepted")));
  EXPECT_EQ(read_checkpoint_info(checkpoint(2)).record.step, 2);
}

TEST_F(Resume, ANewRunFromAnOlderCheckpointEndsInTheSameBits) {
  for (const bool store : {false, true}) {
    if (store) kAllInStore(config_);
    config_.checkpoint = {.every = 2, .keep = 2};
    config_.tiers.nvme = {{directory_ / "nvme", 1ull << 30}};
    const fs::path first = run();
    const std::string whole = train_to(4).state_hash;
    TrainOptions options;
    options.config = config_;
    options.config.tiers.nvme = {{directory_ / (store ? "nvme-new" : "none"), 1ull << 30}};
    options.run_directory = directory_ / "back";
    options.from = checkpoint(2);
    options.hash_state = true;
    const TrainSummary again = train(options);
    EXPECT_EQ(again.resumed_from, 2);
    EXPECT_EQ(again.state_hash, whole);
    EXPECT_THROW(train(options), Error);  // it is a run of its own now
    fs::remove_all(options.run_directory);
    fs::remove_all(directory_ / "nvme-new");
    options.config.data.seed += 1;
    EXPECT_THROW(train(options), Error);
    options.reseed = true;
    EXPECT_NE(train(options).state_hash, whole);
    for (const char* name : {"back", "nvme-new", "nvme", "run"}) fs::remove_all(directory_ / name);
  }
}

class ResumeStore : public Resume {
 protected:
  ResumeStore() { kAllInStore(config_); }
  fs::path commit_file() const { return directory_ / "nvme/strata.commit"; }
};

TEST_F(ResumeStore, ADamagedNewestRecordIsToldWhereTrainingGoesBack) {
  train_to(4);
  const std::string whole = read_file(commit_file());
  // Four steps and the first commit: generation 5, whose record is the second of the two areas at the file's end.
  flip_bit(commit_file(), whole.rfind("STRATARC") + 70);
  EXPECT_EQ(train_to(5).resumed_from, 3);
  EXPECT_THAT(log_, AllOf(HasSubstr("record of generation 5 is damaged"), HasSubstr("continuing from generation 4, step 3")));
}

TEST_F(ResumeStore, OlderCopiesOfItsFilesAreTold) {
  train_to(2);
  fs::copy(directory_ / "nvme", directory_ / "backup", fs::copy_options::recursive);
  train_to(4);
  fs::remove_all(directory_ / "nvme");
  fs::rename(directory_ / "backup", directory_ / "nvme");
  EXPECT_EQ(train_to(5).resumed_from, 2);
  EXPECT_THAT(log_, AllOf(HasSubstr("older copies"), HasSubstr("of step 4"), HasSubstr("step 2")));
}

TEST_F(ResumeStore, ALostCommitFileIsAskedForAndTheStateIsLeft) {
  train_to(2);
  fs::rename(commit_file(), directory_ / "lost");
  const std::string state = read_file(directory_ / "nvme/strata.state");
  const std::string text = refusal(4);
  EXPECT_THAT(text, AllOf(HasSubstr("put strata.commit back"), Not(HasSubstr("remove"))));
  EXPECT_EQ(read_file(directory_ / "nvme/strata.state"), state);
  fs::rename(directory_ / "lost", commit_file());
  EXPECT_EQ(train_to(4).resumed_from, 2);
}

TEST_F(Resume, ARunInMemoryThatSavedNothingStartsOverAndSaysSo) {
  train_to(2);
  fs::remove_all(run() / "checkpoints");
  fs::create_directories(run() / "checkpoints/step-00000002.partial");
  fs::create_directories(run() / "checkpoints/lost+found");
  EXPECT_EQ(train_to(4).resumed_from, 0);
  EXPECT_THAT(log_, HasSubstr("ended after step 2 before it saved anything"));
}

}  // namespace
}  // namespace strata::scheduler
