// Token files that change while a run reads them: an error with a name and a place, and nothing lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>

#include "core/error.hpp"
#include "tests/scheduler/training_fixture.hpp"
#include "tests/support/files.hpp"
#include "tests/support/scratch_directory.hpp"

namespace strata::scheduler {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class ChangedData : public testing::TestWithParam<Tier> {
 protected:
  ChangedData() {
    write_random_model(directory_.path(), kTinyTiedLlama);
    write_text(directory_ / "text.txt", 60000);
    text_ = read_file(directory_ / "text.txt");
  }

  fs::path data(const std::string& name) const { return directory_ / (name + ".bin"); }

  /// Trains on uint32 tokens of their own file to step 6, calling `after_step_2` when two steps are done.
  TrainSummary train_as(const std::string& name, const std::function<void()>& after_step_2 = {}) {
    Config config = tiny_config(directory_.path(), 6);
    config.data.train = {data(name)};
    config.data.format = DataFormat::raw32;
    config.placement.parameters = config.placement.optimizer = GetParam();
    config.placement.activations = ActivationPolicy::recompute;
    config.tiers.nvme = {{directory_ / (name + "-nvme"), 1ull << 30}};
    TrainOptions options;
    options.config = config;
    options.run_directory = directory_ / (name + "-run");
    options.hash_state = true;
    options.on_step = [&](const StepReport& report) {
      if (report.step == 2 && after_step_2) after_step_2();
    };
    return train(options);
  }

  /// The text as uint32 tokens, or `replacement` in place of each.
  std::string wide(uint32_t replacement = 0) const {
    std::string bytes;
    for (const char c : text_) {
      const uint32_t token = replacement != 0 ? replacement : static_cast<unsigned char>(c);
      bytes.append(reinterpret_cast<const char*>(&token), sizeof token);
    }
    return bytes;
  }

  ScratchDirectory directory_{disk_of_the_build()};
  std::string text_;
};

INSTANTIATE_TEST_SUITE_P(Placements, ChangedData, testing::Values(Tier::device, Tier::nvme),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST_P(ChangedData, AreAnErrorAndWithTheOldOnesTheRunEndsInTheSameBits) {
  write_file(data("whole"), wide());
  const TrainSummary whole = train_as("whole");
  int runs = 0;
  for (const std::string& changed : {wide(2'000'000'000), wide(256), wide(0xfffffff0u), std::string("short")}) {
    const std::string name = "changed" + std::to_string(runs++);
    write_file(data(name), wide());
    try {
      train_as(name, [&] { write_file(data(name), changed); });
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(name + ".bin"));
      EXPECT_TRUE(error.code() == ErrorCode::data_corruption || error.code() == ErrorCode::invalid_data) << error.what();
    }
    write_file(data(name), wide());
    const TrainSummary again = train_as(name);
    EXPECT_EQ(again.resumed_from, 2) << name;
    EXPECT_EQ(again.state_hash, whole.state_hash) << name;
  }
}

TEST_P(ChangedData, AStopWhileTheFilesAreCheckedLeavesNothingBehind) {
  write_file(data("stopped"), wide());
  const std::atomic<bool> stop = true;
  TrainOptions options;
  options.config = tiny_config(directory_.path(), 6);
  options.config.data.train = {data("stopped")};
  options.config.data.format = DataFormat::raw32;
  options.run_directory = directory_ / "stopped-run";
  options.stop = &stop;
  try {
    train(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::cancelled);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("before the first step"), HasSubstr("the same command")));
  }
  EXPECT_FALSE(fs::exists(directory_ / "stopped-run"));
}

}  // namespace
}  // namespace strata::scheduler
