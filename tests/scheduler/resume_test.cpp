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
  const fs::path store = directory_ / "nvme", away = directory_ / "away";
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
