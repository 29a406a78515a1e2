#include "core/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

namespace strata {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Error, TextHasWhatWhereAndRemedyAndLeavesOutWhatIsAbsent) {
  EXPECT_STREQ(Error(ErrorCode::io, "what", "where", "remedy").what(), "what\n  where: where\n  try: remedy");
  EXPECT_STREQ(Error(ErrorCode::io, "what", "", "remedy").what(), "what\n  try: remedy");
  EXPECT_STREQ(Error(ErrorCode::io, "what").what(), "what");
  EXPECT_EQ(Error(ErrorCode::busy, "what", "where").where(), "where");
  EXPECT_EQ(to_string(ErrorCode::data_corruption), "data corruption");
}

TEST(Error, SystemReasonsAreWords) { EXPECT_EQ(system_reason(ENOSPC), "No space left on device"); }

TEST(Check, PrintsTheConditionTheValuesAndThePlace) {
  const int offset = 100;
  STRATA_CHECK(offset == 100, "offset {}", offset);
  try {
    STRATA_CHECK(offset % 64 == 0, "offset {}", offset);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::internal);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("offset % 64 == 0"), HasSubstr("offset 100"), HasSubstr("error_test.cpp:")));
  }
}

}  // namespace
}  // namespace strata
