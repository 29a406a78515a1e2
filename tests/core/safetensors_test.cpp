#include "core/safetensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "core/error.hpp"
#include "tests/support/scratch_directory.hpp"

namespace strata {
namespace {

using ::testing::HasSubstr;

std::string with_length(uint64_t length, const std::string& rest) {
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + rest;
}

std::string file_of(const std::string& header, size_t data_bytes) {
  return with_length(header.size(), header + std::string(data_bytes, 'x'));
}

std::string refusal(const std::string& contents) {
  const ScratchDirectory directory;
  std::ofstream(directory / "f.safetensors", std::ios::binary) << contents;
  try {
    SafetensorsFile file(directory / "f.safetensors");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_data) << error.what();
    EXPECT_THAT(error.where(), HasSubstr("f.safetensors"));
    for (const char* c = error.what(); *c != 0; ++c) EXPECT_LT(static_cast<unsigned char>(*c), 0x80) << error.what();
    return error.what();
  }
  return "accepted";
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"t":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

std::string two(const std::string& first, const std::string& second) {
  return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + first +
         R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}";
}

struct Hostile {
  const char* what;
  std::string contents;
  const char* expected;
};

std::vector<Hostile> hostile_corpus() {
  const std::string good = one(R"("F32")", "[2]", "[0,8]");
  std::vector<Hostile> corpus = {
      {"empty file", "", "too few"},
      {"seven bytes", "1234567", "too few"},
      {"length bomb, all ones", with_length(UINT64_MAX, "{}"), "at most 100000000"},
      {"length just over the cap", with_length(100'000'001, "{}"), "at most 100000000"},
      {"length over the file", with_length(3, "{}"), "the file has only 10"},
      {"length zero", with_length(0, "{}"), "begin with '{'"},
      {"leading space", file_of(" {}", 0), "begin with '{'"},
      {"a list", file_of("[]", 0), "begin with '{'"},
      {"truncated JSON", file_of("{\"a\"", 0), "line 1"},
      {"not UTF-8", file_of("{\"\xff\xfe\":{}}", 0), "UTF-8"},
      {"NUL in the JSON", file_of(std::string("{\"a\0\":{}}", 9), 0), "line 1"},
      {"escaped NUL in a name", file_of(R"({"a\u0000b":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0), "NUL"},
      {"depth bomb", file_of("{\"a\":" + std::string(100'000, '['), 0), "8 levels"},
      {"object depth bomb",
       file_of(
           [] {
             std::string s;
             for (int i = 0; i < 1000; ++i) s += "{\"a\":";
             return s;
           }(),
           0),
       "8 levels"},
      {"huge name",
       file_of("{\"" + std::string(5000, 'n') + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0), "4096"},
      {"duplicate tensor",
       file_of(
           R"({"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
           0),
       "duplicate key /t"},
      {"duplicate field", file_of(R"({"t":{"dtype":"U8","dtype":"F32","shape":[0],"data_offsets":[0,0]}})", 0),
       "duplicate key /t/dtype"},
      {"entry is a number", file_of(R"({"t":3})", 0), "not an object"},
      {"no dtype", file_of(R"({"t":{"shape":[0],"data_offsets":[0,0]}})", 0), "no \"dtype\""},
      {"no shape", file_of(R"({"t":{"dtype":"U8","data_offsets":[0,0]}})", 0), "no \"shape\""},
      {"no offsets", file_of(R"({"t":{"dtype":"U8","shape":[0]}})", 0), "no \"data_offsets\""},
      {"unknown dtype", file_of(one(R"("F31")", "[2]", "[0,8]"), 8), "unknown"},
      {"dtype is a number", file_of(one("32", "[2]", "[0,8]"), 8), "not a string"},
      {"shape is a number", file_of(one(R"("F32")", "2", "[0,8]"), 8), "not a list"},
      {"negative size", file_of(one(R"("F32")", "[-2]", "[0,8]"), 8), "other than sizes"},
      {"fractional size", file_of(one(R"("F32")", "[2.0]", "[0,8]"), 8), "other than sizes"},
      {"size beyond 64 bits", file_of(one(R"("F32")", "[18446744073709551616]", "[0,8]"), 8), "other than sizes"},
      {"product overflow to zero", file_of(one(R"("U8")", "[4294967296,4294967296]", "[0,0]"), 0), "64 bits"},
      {"product overflow to a plausible size", file_of(one(R"("U8")", "[9223372036854775807,2,8]", "[0,8]"), 8),
       "64 bits"},
      {"byte count overflow", file_of(one(R"("F32")", "[4611686018427387904]", "[0,0]"), 0), "64 bits"},
      {"sub-byte misalignment", file_of(one(R"("F4")", "[3]", "[0,1]"), 1), "whole number of bytes"},
      {"one offset", file_of(one(R"("F32")", "[2]", "[0]"), 8), "two offsets"},
      {"negative offset", file_of(one(R"("F32")", "[2]", "[-8,0]"), 8), "two offsets"},
      {"offset is a string", file_of(one(R"("F32")", "[2]", R"(["0","8"])"), 8), "two offsets"},
      {"reversed offsets", file_of(one(R"("F32")", "[2]", "[8,0]"), 8), "reversed"},
      {"shape and offsets differ", file_of(one(R"("F32")", "[2]", "[0,4]"), 4), "take 8 bytes"},
      {"past the end", file_of(good, 7), "ends at byte 8 of a data section of 7"},
      {"far past the end", file_of(one(R"("U8")", "[8]", "[18446744073709551607,18446744073709551615]"), 8),
       "ends at byte"},
      {"bytes left over", file_of(good, 9), "end at byte 8 of a data section of 9"},
      {"not starting at zero", file_of(one(R"("F32")", "[2]", "[1,9]"), 9), "hole"},
      {"overlap", file_of(two("[0,4]", "[2,6]"), 6), "inside the tensor before"},
      {"same bytes twice", file_of(two("[0,4]", "[0,4]"), 4), "inside the tensor before"},
      {"hole between", file_of(two("[0,4]", "[5,9]"), 9), "hole before it, from byte 4 to 5"},
      {"empty tensor past the end", file_of(one(R"("U8")", "[0]", "[5,5]"), 0), "ends at byte 5"},
      {"metadata is a list", file_of(R"({"__metadata__":[]})", 0), "__metadata__"},
      {"metadata holds a number", file_of(R"({"__metadata__":{"a":1}})", 0), "__metadata__"},
      {"text after the header's object", file_of("{} x", 0), "line 1, column 4"},
  };
  return corpus;
}

TEST(Safetensors, EveryHostileFileIsRefusedWithItsReason) {
  for (const Hostile& hostile : hostile_corpus())
    EXPECT_THAT(refusal(hostile.contents), HasSubstr(hostile.expected)) << hostile.what;
}

TEST(Safetensors, TooManyTensorsAreRefusedByCount) {
  std::string header = "{";
  for (int i = 0; i < 420'000; ++i) {
    header += fmt::format(R"("{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}},)", i);
  }
  header.back() = '}';
  EXPECT_THAT(refusal(file_of(header, 0)), HasSubstr("4000000 values"));
}

TEST(Safetensors, UnusualButValidFilesAreAccepted) {
  EXPECT_EQ(refusal(file_of("{}", 0)), "accepted");
  EXPECT_EQ(refusal(file_of("{}      ", 0)), "accepted") << "space padding";
  EXPECT_EQ(refusal(file_of(one(R"("F32")", "[]", "[0,4]"), 4)), "accepted") << "a scalar";
  EXPECT_EQ(refusal(file_of(one(R"("F64")", "[3,0,9223372036854775807]", "[0,0]"), 0)), "accepted") << "no elements";
  EXPECT_EQ(refusal(file_of(two("[4,8]", "[0,4]"), 8)), "accepted") << "order of names differs from order of bytes";
  EXPECT_EQ(
      refusal(file_of(
          R"({"z":{"dtype":"U8","shape":[0],"data_offsets":[4,4]},"a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}})",
          4)),
      "accepted");
  EXPECT_EQ(refusal(file_of(one(R"("F4")", "[4]", "[0,2]"), 2)), "accepted");
}

TEST(Safetensors, EveryDTypeOfTheFormatIsKnown) {
  for (const auto& [name, bits] : std::vector<std::pair<const char*, uint32_t>>{{"F64", 64},
                                                                                {"F32", 32},
                                                                                {"F16", 16},
                                                                                {"BF16", 16},
                                                                                {"I64", 64},
                                                                                {"I32", 32},
                                                                                {"I16", 16},
                                                                                {"I8", 8},
                                                                                {"U64", 64},
                                                                                {"U32", 32},
                                                                                {"U16", 16},
                                                                                {"U8", 8},
                                                                                {"BOOL", 8},
                                                                                {"F8_E4M3", 8},
                                                                                {"F8_E5M2", 8}}) {
    EXPECT_EQ(safetensors_dtype_bits(name), bits) << name;
  }
  EXPECT_EQ(safetensors_dtype_bits("f32"), 0u);
  EXPECT_EQ(safetensors_dtype_bits(""), 0u);
}

TEST(Safetensors, WhatIsWrittenInPiecesIsReadBack) {
  const ScratchDirectory directory;
  const std::filesystem::path path = directory / "w.safetensors";
  std::vector<float> values(1000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.5f;
  const std::vector<uint8_t> flags = {1, 0, 1};
  {
    SafetensorsWriter writer(path, {{"flags", "BOOL", {3}}, {"ünïcode", "F32", {10, 100}}, {"none", "I64", {0}}},
                             {{"format", "pt"}});
    writer.write("ünïcode", 2000, values.data() + 500, 2000);
    writer.write("flags", 0, flags.data(), 3);
    EXPECT_FALSE(std::filesystem::exists(path)) << "visible before it is complete";
    writer.write("ünïcode", 0, values.data(), 2000);
    writer.finish();
  }
  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.tensors().size(), 3u);
  const SafetensorsEntry* tensor = file.find("ünïcode");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->shape, (std::vector<int64_t>{10, 100}));
  EXPECT_EQ(tensor->begin % 4, 0u);
  std::vector<float> back(700);
  file.read(*tensor, 4 * 200, back.data(), 4 * 700);
  EXPECT_EQ(back, std::vector<float>(values.begin() + 200, values.begin() + 900));
  std::vector<uint8_t> flags_back(3);
  file.read(*file.find("flags"), 0, flags_back.data(), 3);
  EXPECT_EQ(flags_back, flags);
  EXPECT_EQ(file.find("other"), nullptr);
  EXPECT_THROW(file.read(*tensor, 4000, back.data(), 1), Error);
}

TEST(Safetensors, AnUnfinishedFileLeavesNothingBehind) {
  const ScratchDirectory directory;
  {
    SafetensorsWriter writer(directory / "w.safetensors", {{"a", "U8", {4}}}, {});
    EXPECT_THROW(writer.finish(), Error) << "nothing was written";
    EXPECT_THROW(writer.write("a", 2, "abcd", 4), Error);
    EXPECT_THROW(writer.write("b", 0, "abcd", 4), Error);
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  EXPECT_THROW(SafetensorsWriter(directory / "x", {{"a", "U8", {4}}, {"a", "U8", {4}}}, {}), Error);
  EXPECT_THROW(SafetensorsWriter(directory / "x", {{"a", "F33", {4}}}, {}), Error);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(Safetensors, AFileThatShrinksWhileItIsReadIsNoticed) {
  const ScratchDirectory directory;
  const std::filesystem::path path = directory / "f.safetensors";
  std::ofstream(path, std::ios::binary) << file_of(one(R"("U8")", "[64]", "[0,64]"), 64);
  const SafetensorsFile file(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  char buffer[64];
  EXPECT_THROW(file.read(*file.find("t"), 0, buffer, 64), Error);
}

TEST(SafetensorsIndex, PlainNamesAreFollowedAndOthersRefused) {
  const ScratchDirectory directory;
  const auto read = [&](const std::string& text) {
    std::ofstream(directory / "i.json", std::ios::trunc) << text;
    try {
      return read_safetensors_index(directory / "i.json").size();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_data);
      return size_t{999};
    }
  };
  EXPECT_EQ(read(R"({"metadata":{"total_size":1},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"x"}})"), 2u);
  for (const char* name : {"../x", "/etc/passwd", "a/b", "", ".", "..", "a\\\\b", "x\\u0000y"}) {
    EXPECT_EQ(read(std::string(R"({"weight_map":{"a":")") + name + "\"}}"), 999u) << name;
  }
  for (const char* text :
       {"{}", "[]", R"({"weight_map":[]})", R"({"weight_map":{"a":1}})", R"({"weight_map":{"a":"x","a":"y"}})"}) {
    EXPECT_EQ(read(text), 999u) << text;
  }
}

}  // namespace
}  // namespace strata
