// What every command has in common: help, exit statuses, results on stdout and complaints on stderr.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/program.hpp"

namespace strata::cli::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

TEST(Usage, AnUnknownCommandIsRefused) { EXPECT_EQ(strata({"trian"}).status, 2); }

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

}  // namespace
}  // namespace strata::cli::testing
