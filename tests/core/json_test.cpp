#include "core/json.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/json_fields.hpp"

namespace strata {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refusal(const std::string& text, const JsonLimits& limits = {}) {
  try {
    parse_json(text, "test.json", ErrorCode::invalid_data, limits);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_data);
    EXPECT_EQ(error.where(), "test.json");
    return error.message();
  }
  return "accepted";
}

TEST(Json, OrdinaryTextIsBuiltAsItStands) {
  const Json value = parse_json(R"({"a": [1, -2, 2.5, "é", null, true, {"b": {}}], "": {"x": []}})", "", ErrorCode::io);
  EXPECT_EQ(value, Json::parse(R"({"a": [1, -2, 2.5, "é", null, true, {"b": {}}], "": {"x": []}})"));
  EXPECT_EQ(parse_json("18446744073709551615", "", ErrorCode::io).get<uint64_t>(), UINT64_MAX);
}

TEST(Json, SyntaxErrorsSayLineAndColumn) {
  EXPECT_THAT(refusal("{\n  \"a\": 1,\n  \"b\": ?\n}"), HasSubstr("line 3, column 8"));
  EXPECT_THAT(refusal(""), HasSubstr("line 1, column 1"));
  EXPECT_THAT(refusal("{} {}"), HasSubstr("line 1, column 4"));
  EXPECT_THAT(refusal("[1, 2"), HasSubstr("line 1"));
  EXPECT_THAT(refusal("{'a': 1}"), HasSubstr("column 2"));
  EXPECT_THAT(refusal("// comment\n1"), HasSubstr("line 1"));
  EXPECT_THAT(refusal("[NaN]"), HasSubstr("line 1"));
  EXPECT_THAT(refusal("[1e999]"), HasSubstr("1e999"));
}

TEST(Json, ATextEndsAtItsEndAndNotAtANul) {
  const auto with_nul = [](std::string text) {
    for (char& c : text) c = c == '@' ? '\0' : c;
    return text;
  };
  EXPECT_THAT(refusal(with_nul("{}@")), HasSubstr("line 1, column 3: a NUL byte"));
  EXPECT_THAT(refusal(with_nul("{\"a\": 1}\n@{\"a\": 2}")), HasSubstr("line 2, column 1: a NUL byte"));
  EXPECT_THAT(refusal(with_nul("[1, @ 2]")), HasSubstr("a NUL byte"));
  EXPECT_THAT(refusal(with_nul("\"a@b\"")), HasSubstr("a NUL byte"));
  EXPECT_THAT(refusal(with_nul("@")), HasSubstr("a NUL byte"));
  EXPECT_EQ(refusal("{} \n\t"), "accepted");
  EXPECT_NE(refusal("{} x"), "accepted");
  EXPECT_EQ(parse_json("\"a\\u0000b\"", "", ErrorCode::io).get<std::string>(), std::string("a\0b", 3));
}

TEST(Json, DuplicateKeysAreNamedByTheirPointer) {
  EXPECT_THAT(refusal(R"({"a": 1, "b": {"c": [0, {"x/y": 1, "x/y": 2}]}})"), HasSubstr("/b/c/1/x~1y"));
  EXPECT_THAT(refusal(R"({"a": 1, "a": 1})"), HasSubstr("duplicate key /a"));
}

TEST(Json, CollectedDuplicatesKeepTheFirstValue) {
  std::vector<std::string> duplicates;
  const Json value = parse_json(R"({"a": 1, "a": {"deep": [1, {"q": 1, "q": 2}]}, "b": {"c": 1, "c": 2}, "d": 3})", "",
                                ErrorCode::invalid_data, {}, &duplicates);
  EXPECT_THAT(duplicates, ElementsAre("/a", "/a/deep/1/q", "/b/c"));
  EXPECT_EQ(value, Json::parse(R"({"a": 1, "b": {"c": 1}, "d": 3})"));
}

TEST(Json, DepthCountAndSizeAreLimited) {
  EXPECT_THAT(refusal(std::string(200'000, '[')), HasSubstr("64 levels"));
  std::string objects;
  for (int i = 0; i < 100; ++i) objects += "{\"a\":";
  EXPECT_THAT(refusal(objects), HasSubstr("64 levels"));
  EXPECT_THAT(refusal("[1,1,1,1,1,1]", {.values = 5}), HasSubstr("5 values"));
  EXPECT_THAT(refusal("{\"a\":1,\"b\":2}", {.values = 4}), HasSubstr("4 values"));
  EXPECT_THAT(refusal("[1,1]", {.bytes = 4}), HasSubstr("5 bytes"));
  EXPECT_EQ(refusal(std::string(64, '[') + std::string(64, ']')), "accepted");
}

TEST(Json, InvalidUtf8IsRefusedAndNeverPrinted) {
  const std::string message = refusal("{\"a\xff\": 1}");
  EXPECT_THAT(message, HasSubstr("line 1"));
  for (const char c : message) EXPECT_LT(static_cast<unsigned char>(c), 0x80);
  EXPECT_NE(refusal("\"\xed\xa0\x80\""), "accepted") << "a surrogate";
  EXPECT_NE(refusal("\"\xc0\x80\""), "accepted") << "an overlong form";
  EXPECT_NE(refusal("\"\\ud800\""), "accepted") << "half of a surrogate pair";
}

TEST(Json, NearestWordFindsSlipsAndNothingElse) {
  const std::vector<std::string> words = {"block_size", "lr", "weight_decay", "steps"};
  EXPECT_EQ(nearest_word("bloock_size", words), "block_size");
  EXPECT_EQ(nearest_word("wieght_decay", words), "weight_decay");
  EXPECT_EQ(nearest_word("step", words), "steps");
  EXPECT_EQ(nearest_word("lrr", words), "lr");
  EXPECT_EQ(nearest_word("temperature", words), "");
  EXPECT_EQ(nearest_word(std::string(100'000, 'x'), words), "");
}

}  // namespace
}  // namespace strata
