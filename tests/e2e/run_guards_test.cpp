// What a run refuses, and what a failure in the middle leaves behind.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "tests/e2e/run_files.hpp"
#include "tests/support/program_run.hpp"

namespace strata::e2e {
namespace {

TEST(RunGuards, ASecondRunInTheSameDirectoryIsRefusedWithTheFirstOnesProcessId) {
  RunFiles files(scheduler::kTinyTiedLlama, 100000);
  ProgramRun first(files.train("run"), files / "first.log");
  while (first.running() && first.text().find("step 1/") == std::string::npos)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ProgramRun second(files.train("run"), files / "second.log");
  EXPECT_EQ(second.wait(), 1);
  EXPECT_NE(second.text().find(std::to_string(first.pid())), std::string::npos) << second.text();
  EXPECT_TRUE(first.running()) << first.text();
  // The same store under another run directory is no way around it.
  std::vector<std::string> other = files.train("run");
  other[3] = (files / "elsewhere").string();
  other.insert(other.end(), {"--resume", "never", "--discard", "run"});
  ProgramRun third(other, files / "third.log");
  EXPECT_EQ(third.wait(), 1);
  EXPECT_NE(third.text().find(std::to_string(first.pid())), std::string::npos) << third.text();
  first.kill(SIGINT);
  EXPECT_EQ(first.wait(), 3) << first.text();
}

TEST(RunGuards, EverySignalThatAsksForAnEndLetsTheStepFinish) {
  RunFiles files(scheduler::kTinyTiedLlama, 100000);
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) {
    ProgramRun run(files.train("run"), files / (std::to_string(signal_number) + ".log"));
    while (run.running() && run.text().find("tok/s") == std::string::npos) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    run.kill(signal_number);
    EXPECT_EQ(run.wait(), 3) << run.text();
    EXPECT_NE(run.text().find("stopped after step"), std::string::npos) << run.text();
  }
}

TEST(RunGuards, AnotherRunsStoreIsNotContinued) {
  RunFiles files(scheduler::kTinyTiedLlama, 3);
  ProgramRun first(files.train("run"), files / "first.log");
  ASSERT_EQ(first.wait(), 0) << first.text();
  std::vector<std::string> other = files.train("run");
  other[3] = (files / "elsewhere").string();
  ProgramRun second(other, files / "second.log");
  EXPECT_EQ(second.wait(), 2);
  EXPECT_NE(second.text().find("another run"), std::string::npos) << second.text();
  EXPECT_NE(second.text().find("\"run\" (" + (files / "run").string() + ") at step 3"), std::string::npos) << second.text();
  // Nor is it lost for a new run of its own, unless it is named.
  other.insert(other.end(), {"--resume", "never"});
  ProgramRun unnamed(other, files / "unnamed.log");
  EXPECT_EQ(unnamed.wait(), 2);
  EXPECT_NE(unnamed.text().find("at step 3"), std::string::npos) << unnamed.text();
  EXPECT_NE(unnamed.text().find("--discard run"), std::string::npos) << unnamed.text();
  EXPECT_FALSE(std::filesystem::exists(files / "elsewhere"));
  ProgramRun again(files.train("run"), files / "again.log");
  ASSERT_EQ(again.wait(), 0) << again.text();
  EXPECT_EQ(again.value("state_hash"), first.value("state_hash"));
  EXPECT_NE(again.text().find("nothing to do: the run has done its 3 steps"), std::string::npos) << again.text();
  other.insert(other.end(), {"--discard", "run"});
  ProgramRun named(other, files / "named.log");
  EXPECT_EQ(named.wait(), 0) << named.text();
  EXPECT_NE(named.text().find("discarded, as named: the store in"), std::string::npos) << named.text();
}

TEST(RunGuards, ACallThatDoesNothingSaysWhyAndLeavesTheRunAsItIs) {
  RunFiles files(scheduler::kTinyTiedLlama, 6);
  ProgramRun first(files.train("run"), files / "first.log");
  ASSERT_EQ(first.wait(), 0) << first.text();
  const std::string metrics = read_file(files / "run/metrics.jsonl");
  files.config.steps = 5;
  ProgramRun again(files.train("run"), files / "again.log");
  EXPECT_EQ(again.wait(), 0) << again.text();
  EXPECT_NE(again.text().find("nothing to do: the run is at step 6 and `steps` is 5"), std::string::npos) << again.text();
  EXPECT_EQ(again.value("steps"), "6");
  EXPECT_EQ(read_file(files / "run/metrics.jsonl"), metrics);
}

TEST(RunGuards, ABudgetThatCannotHoldTheRunIsRefusedWithATableBeforeAnything) {
  RunFiles files;
  files.config.device.memory_bytes = 1 << 20;
  ProgramRun run(files.train("run"), files / "run.log");
  EXPECT_EQ(run.wait(), 1);
  EXPECT_NE(run.text().find("missing"), std::string::npos) << run.text();
  EXPECT_NE(run.text().find("device.memory"), std::string::npos) << run.text();
  EXPECT_FALSE(std::filesystem::exists(files / "run-nvme")) << "the store was made";
}

TEST(RunGuards, AFileSizeLimitBelowTheStoresSizeIsRefusedAtStart) {
  RunFiles files(scheduler::kTinyTiedLlama, 4);
  const auto limit = [] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit small{64 << 10, 64 << 10};
    setrlimit(RLIMIT_FSIZE, &small);
  };
  ProgramRun limited(files.train("run"), files / "limited.log", limit);
  EXPECT_EQ(limited.wait(), 1);
  EXPECT_NE(limited.text().find("strata: "), std::string::npos) << limited.text();
  EXPECT_EQ(limited.text().find("step 1/"), std::string::npos) << limited.text();
  ProgramRun free(files.train("run"), files / "free.log");
  EXPECT_EQ(free.wait(), 0) << free.text();
}

TEST(RunGuards, AFullDiskAtStartNamesNeededAndFreeBytes) {
  RunFiles files(scheduler::kTinyTiedLlama, 3);
  std::vector<std::string> arguments = files.train("run");
  const std::filesystem::path mount_point = files / "run-nvme";
  std::filesystem::create_directories(mount_point);
  std::filesystem::permissions(mount_point, std::filesystem::perms::owner_all);
  if (mount("tmpfs", mount_point.c_str(), "tmpfs", 0, "size=1m,mode=0700") != 0)
    GTEST_SKIP() << "cannot mount a small tmpfs here: " << std::strerror(errno);
  ProgramRun run(arguments, files / "run.log");
  EXPECT_EQ(run.wait(), 1);
  EXPECT_NE(run.text().find("free"), std::string::npos) << run.text();
  EXPECT_NE(run.text().find("need"), std::string::npos) << run.text();
  umount(mount_point.c_str());
}

TEST(RunGuards, AWrongModelOrDataFileIsRefusedAtOnceAndLeavesTheOldState) {
  RunFiles files(scheduler::kTinyTiedLlama, 3);
  ProgramRun first(files.train("run"), files / "first.log");
  ASSERT_EQ(first.wait(), 0) << first.text();
  const auto refused = [&](const std::string& set) {
    std::vector<std::string> arguments = files.train("run");
    arguments.insert(arguments.end(), {"--set", set});
    ProgramRun run(arguments, files / "refused.log");
    EXPECT_NE(run.wait(), 0) << set;
    return run.text();
  };
  // The run keeps what it needs of its model, so that one that is gone is said and not missed; a new run has nothing to begin from.
  std::vector<std::string> arguments = files.train("run");
  arguments.insert(arguments.end(), {"--set", "model.path=\"nowhere\""});
  ProgramRun without_model(arguments, files / "gone.log");
  ASSERT_EQ(without_model.wait(), 0) << without_model.text();
  EXPECT_NE(without_model.text().find("the model at nowhere is gone"), std::string::npos) << without_model.text();
  arguments = files.train("other-run");
  arguments.insert(arguments.end(), {"--set", "model.path=\"nowhere\""});
  ProgramRun nothing_to_begin_from(arguments, files / "new.log");
  EXPECT_EQ(nothing_to_begin_from.wait(), 2);
  EXPECT_NE(nothing_to_begin_from.text().find("nowhere"), std::string::npos);
  EXPECT_NE(refused("data.train=[\"nowhere.txt\"]").find("nowhere.txt"), std::string::npos);
  EXPECT_NE(refused("data.seed=7").find("data.seed 42 -> 7"), std::string::npos);
  ProgramRun again(files.train("run"), files / "again.log");
  ASSERT_EQ(again.wait(), 0) << again.text();
  EXPECT_EQ(again.value("state_hash"), first.value("state_hash"));
}

TEST(RunGuards, ThousandsOfTrainingFilesFitTheStoresRecordAndALowLimitOfOpenFiles) {
  constexpr int kFiles = 3000;  // their names alone are longer than a commit record can be
  RunFiles files(scheduler::kTinyTiedLlama, 2);
  files.config.data.train.clear();
  for (int i = 0; i < kFiles; ++i) {
    const std::filesystem::path file = files / ("a-part-of-the-text-with-a-long-name-" + std::to_string(i) + ".txt");
    write_file(file, std::string(40, static_cast<char>('a' + i % 26)));
    files.config.data.train.push_back(file);
  }
  const auto few_files = [] {
    const rlimit limit{512, 512};
    setrlimit(RLIMIT_NOFILE, &limit);
  };
  ProgramRun first(files.train("run"), files / "first.log", few_files);
  ASSERT_EQ(first.wait(), 0) << first.text();
  files.config.steps = 4;
  ProgramRun again(files.train("run"), files / "again.log", few_files);
  ASSERT_EQ(again.wait(), 0) << again.text();
  EXPECT_NE(again.text().find("resumed from the store at step 2"), std::string::npos) << again.text();
  EXPECT_EQ(again.text().find("data.train"), std::string::npos) << again.text();
  write_file(files.config.data.train[2345], std::string(40, '!'));
  ProgramRun changed(files.train("run"), files / "changed.log");
  EXPECT_EQ(changed.wait(), 2);
  EXPECT_NE(changed.text().find("file 2346 of 3000"), std::string::npos) << changed.text();
}

TEST(RunGuards, OmpNumThreadsHasNoEffect) {
  RunFiles files(scheduler::kTinyTiedLlama, 3);
  files.config.device.threads = 0;
  files.config.schedule.update_threads = 0;
  ProgramRun plain(files.train("plain"), files / "plain.log");
  ASSERT_EQ(plain.wait(), 0) << plain.text();
  ProgramRun limited(files.train("limited"), files / "limited.log", [] { setenv("OMP_NUM_THREADS", "1", 1); });
  ASSERT_EQ(limited.wait(), 0) << limited.text();
  EXPECT_EQ(plain.value("state_hash"), limited.value("state_hash"));
  EXPECT_EQ(plain.value("update     "), limited.value("update     "));
  EXPECT_FALSE(plain.value("update     ").empty()) << plain.text();
}

}  // namespace
}  // namespace strata::e2e
