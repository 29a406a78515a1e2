// What every command has in common: help, exit statuses, results on stdout and complaints on stderr.
#include <gmock/gmock.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/cli/trained_run.hpp"

namespace strata::cli::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class EveryCommand : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Usage, EveryCommand,
                         ::testing::Values("train", "plan", "init", "inspect", "verify", "export", "doctor"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(EveryCommand, HasHelp) {
  const Outcome outcome = strata({GetParam(), "--help"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, HasSubstr("Usage"));
  EXPECT_THAT(outcome.out, HasSubstr(GetParam()));
  EXPECT_THAT(outcome.err, IsEmpty());
}

TEST_P(EveryCommand, RefusesAnUnknownOption) {
  const Outcome outcome = strata({GetParam(), "--no-such-option"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_THAT(outcome.err, Not(IsEmpty()));
}

TEST_P(EveryCommand, IsNamedInTheHelpOfTheProgram) {
  const Outcome outcome = strata({"--help"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, HasSubstr(GetParam()));
}

class CommandWithArguments : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Usage, CommandWithArguments, ::testing::Values("train", "plan", "init", "inspect", "verify", "export"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(CommandWithArguments, RefusesToRunWithoutThem) {
  const Outcome outcome = strata({GetParam()});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_THAT(outcome.err, HasSubstr("required"));
}

TEST(Usage, ACommandIsNeeded) { EXPECT_EQ(strata({}).status, 2); }

TEST(Usage, AnUnknownCommandIsNamedWithTheNearestAndAllOthers) {
  const Outcome near = strata({"trian", "config.json"});
  EXPECT_EQ(near.status, 2);
  EXPECT_THAT(near.out, IsEmpty());
  EXPECT_THAT(near.err, AllOf(HasSubstr("\"trian\""), HasSubstr("did you mean \"train\"?"), HasSubstr("inspect, verify")));
  const Outcome far = strata({"quantize"});
  EXPECT_EQ(far.status, 2);
  EXPECT_THAT(far.err, AllOf(HasSubstr("\"quantize\""), Not(HasSubstr("did you mean")), HasSubstr("train, plan")));
}

TEST(Usage, ASurplusArgumentIsRefused) {
  EXPECT_EQ(strata({"inspect", "a", "b"}).status, 2);
  EXPECT_EQ(strata({"export", "a", "b", "c"}).status, 2);
  EXPECT_EQ(strata({"doctor", "a"}).status, 2);
}

TEST(Usage, TheVersionIsPrinted) {
  const Outcome outcome = strata({"--version"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, HasSubstr("strata"));
}

/// For `prepare`: the stream goes to a disk that is full, or to a pipe that nobody reads.
std::function<void()> full(int descriptor) {
  return [descriptor] { dup2(open("/dev/full", O_WRONLY), descriptor); };
}
std::function<void()> unread(int descriptor) {
  return [descriptor] {
    int ends[2];
    if (pipe(ends) != 0) _exit(126);
    dup2(ends[1], descriptor);
    close(ends[0]);
    close(ends[1]);
  };
}

std::vector<std::string> train_into(const TrainedRun& trained, const std::string& directory) {
  return {"train", trained.scratch() / "train.json", "--run-dir", trained.scratch() / directory};
}

TEST(Output, NarrationThatCannotBeWrittenEndsNoRun) {
  const TrainedRun trained(Optimizer::host);
  EXPECT_EQ(strata(train_into(trained, "full"), full(STDERR_FILENO)).status, 0);
  EXPECT_EQ(strata(train_into(trained, "unread"), unread(STDERR_FILENO)).status, 0);
  EXPECT_EQ(strata({"trian"}, full(STDERR_FILENO)).status, 2);
}

TEST(Output, ResultsThatCannotBeWrittenAreAFailure) {
  const TrainedRun trained(Optimizer::host);
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--help"}, {"--version"}, {"inspect", trained.model()}, {"verify", trained.run()},
        {"plan", trained.scratch() / "train.json"}, {"plan", "--help"}}) {
    for (const auto& prepare : {full(STDOUT_FILENO), unread(STDOUT_FILENO), std::function<void()>([] { close(STDOUT_FILENO); })}) {
      const Outcome outcome = strata(arguments, prepare);
      EXPECT_EQ(outcome.status, 1) << arguments.front();
      EXPECT_THAT(outcome.err, HasSubstr("standard output")) << arguments.front();
    }
  }
}

TEST(Output, NoFileTakesThePlaceOfAClosedStream) {
  const TrainedRun trained(Optimizer::host);
  const Outcome outcome = strata(train_into(trained, "closed"), [] {
    close(STDIN_FILENO);
    close(STDERR_FILENO);
  });
  EXPECT_EQ(outcome.status, 0);
  for (const auto& entry : fs::recursive_directory_iterator(trained.scratch() / "closed")) {
    if (entry.is_regular_file()) {
      EXPECT_THAT(read_file(entry.path()), Not(HasSubstr("step 1/4"))) << entry.path();
    }
  }
}

}  // namespace
}  // namespace strata::cli::testing
