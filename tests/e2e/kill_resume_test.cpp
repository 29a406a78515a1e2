// Killed at any moment, a run whose state is in the store resumes from its last commit and ends in the same bits.
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <thread>

#include "tests/e2e/run_files.hpp"
#include "tests/support/program_run.hpp"

namespace strata::e2e {
namespace {

constexpr int kKills = 50;

/// Seconds of an uninterrupted run, and the hash that it ends in.
struct Uninterrupted {
  double seconds;
  std::string hash;
};

Uninterrupted run_to_the_end(RunFiles& files, const std::string& name) {
  const auto start = std::chrono::steady_clock::now();
  ProgramRun run(files.train(name), files / (name + ".log"));
  EXPECT_EQ(run.wait(), 0) << run.text();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), run.value("state_hash")};
}

TEST(KillAndResume, FiftyRandomKillsEndInTheBitsOfTheUninterruptedRun) {
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  int kills = 0, resumed_later_than_the_start = 0;
  for (int trial = 0; kills < kKills; ++trial) {
    RunFiles files;
    files.config.schedule.update = trial % 2 == 0 ? UpdateMode::lazy : UpdateMode::after_backward;
    files.config.tiers.io_engine = trial % 3 == 2 ? "threads" : "auto";
    files.config.checkpoint.every = 7;
    const Uninterrupted whole = run_to_the_end(files, "whole");
    ASSERT_FALSE(whole.hash.empty());
    const std::vector<std::string> arguments = files.train("killed");
    std::string hash;
    for (int attempt = 0; hash.empty(); ++attempt) {
      ASSERT_LT(attempt, 200) << "no progress, seed " << seed;
      ProgramRun run(arguments, files / "killed.log");
      // Short lives: most kills fall somewhere inside the step loop, some into set-up, some into the end.
      const double life = std::uniform_real_distribution<>(0.0, 0.9)(random) * whole.seconds;
      std::this_thread::sleep_for(std::chrono::duration<double>(life));
      if (attempt < 30 && run.running()) {
        run.kill();
        run.wait();
        ++kills;
        continue;
      }
      ASSERT_EQ(run.wait(), 0) << run.text() << "\nseed " << seed << ", trial " << trial;
      resumed_later_than_the_start += run.text().find("resumed from") != std::string::npos;
      hash = run.value("state_hash");
    }
    ASSERT_EQ(hash, whole.hash) << "seed " << seed << ", trial " << trial << ", " << kills << " kills so far";
  }
  EXPECT_GT(resumed_later_than_the_start, 0) << "every kill came before the first commit, seed " << seed;
}

TEST(KillAndResume, InterruptEndsAfterTheStepWithStateCommitted) {
  RunFiles files(scheduler::kTinyTiedLlama, 100000);
  ProgramRun run(files.train("run"), files / "run.log");
  while (run.running() && run.text().find("step 1/") == std::string::npos)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  run.kill(SIGINT);
  ASSERT_EQ(run.wait(), 3) << run.text();
  EXPECT_NE(run.text().find("stopped after step"), std::string::npos) << run.text();
  files.config.steps = std::stoll(run.value("steps")) + 3;
  ProgramRun again(files.train("run"), files / "again.log");
  ASSERT_EQ(again.wait(), 0) << again.text();
  EXPECT_NE(again.text().find("resumed from the store at step " + run.value("steps")), std::string::npos)
      << again.text();
}

}  // namespace
}  // namespace strata::e2e
