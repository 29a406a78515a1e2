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
  std::string log_;
};

TEST_F(Resume, AFlippedBitInAnyFileOfACheckpointIsFoundBeforeItIsUsed) {
  train_to(2);
  for (const auto& entry : fs::recursive_directory_iterator(checkpoint(2))) {
    if (!entry.is_regular_file() || entry.path().filename() == "checkpoint.json") continue;
    const uint64_t middle = entry.file_size() / 2;
    flip_bit(entry.path(), middle);
    EXPECT_THAT(refusal(4), AllOf(HasSubstr(entry.path().string()), HasSubstr("checksum"), HasSubstr("--resume never")));
    EXPECT_THROW(export_checkpoint(run() / "checkpoints", directory_ / "out", {}), Error) << entry.path();
    EXPECT_FALSE(fs::exists(directory_ / "out"));
    flip_bit(entry.path(), middle);
  }
  EXPECT_EQ(train_to(4).resumed_from, 2);
}

}  // namespace
}  // namespace strata::scheduler
