#include "core/printable.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace strata {
namespace {

TEST(Printable, LettersOfEveryScriptStayAsTheyAre) {
  for (const std::string text : {"plain ~ \\ \"text\"", "blåbær/Übung", "данные.bin", "日本語", "بيانات", "עברית", "👩‍🔬 emoji",
                                 "نمی‌خواهم",
                                 "e\u0301", "\U00020000"}) {
    EXPECT_EQ(shown_text(text), text);
    EXPECT_EQ(printable(text, 1000), text);
  }
}

TEST(Printable, WhatSteersATerminalIsShownByItsBytes) {
  EXPECT_EQ(shown_text("a\x1b[31mb"), "a\\x1b[31mb");
  EXPECT_EQ(shown_text(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(shown_text("\r\t\n\x7f"), "\\x0d\\x09\\x0a\\x7f");
  EXPECT_EQ(shown_text("\xc2\x9b" "31m"), "\\xc2\\x9b31m") << "a control sequence introducer of one character";
  EXPECT_EQ(shown_lines("one\ntwo\r\n\x1b"), "one\ntwo\\x0d\n\\x1b");
}

TEST(Printable, WhatMakesTextLookLikeAnotherIsShownByItsBytes) {
  for (const char32_t code : {0x61cu, 0x200bu, 0x200eu, 0x200fu, 0x2028u, 0x2029u, 0x202au, 0x202bu, 0x202cu, 0x202du, 0x202eu, 0x2060u,
                              0x2066u, 0x2067u, 0x2068u, 0x2069u, 0xadu, 0xfeffu, 0xfff9u, 0xe0001u, 0xe0041u}) {
    std::string text;
    if (code < 0x800) text = {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
    else if (code < 0x10000)
      text = {static_cast<char>(0xe0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3f)), static_cast<char>(0x80 | (code & 0x3f))};
    else
      text = {static_cast<char>(0xf0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 0x3f)),
              static_cast<char>(0x80 | (code >> 6 & 0x3f)), static_cast<char>(0x80 | (code & 0x3f))};
    for (const std::string& shown : {shown_text(text), printable(text), shown_lines(text), shown_json("\"" + text + "\"")})
      for (const char c : shown) EXPECT_TRUE(c >= 0x20 && c < 0x7f) << std::hex << static_cast<uint32_t>(code) << ": " << shown;
    EXPECT_EQ(nlohmann::json::parse(shown_json("\"" + text + "\"")).get<std::string>(), text);
  }
}

TEST(Printable, BytesThatAreNoUtf8AreShownByTheirNumbers) {
  EXPECT_EQ(shown_text("a\xff" "b"), "a\\xffb");
  EXPECT_EQ(shown_text("\xc3"), "\\xc3") << "cut off";
  EXPECT_EQ(shown_text("\xc3("), "\\xc3(");
  EXPECT_EQ(shown_text("\xc0\x80"), "\\xc0\\x80") << "overlong";
  EXPECT_EQ(shown_text("\xe0\x80\x80"), "\\xe0\\x80\\x80") << "overlong";
  EXPECT_EQ(shown_text("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(shown_text("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "beyond Unicode";
}

TEST(Printable, ALongTextIsCutBetweenCharacters) {
  EXPECT_EQ(printable(std::string(200, 'x')), std::string(80, 'x') + "...");
  EXPECT_EQ(printable("ééé", 3), "éé...");
  EXPECT_EQ(printable("éé", 4), "éé");
}

}  // namespace
}  // namespace strata
