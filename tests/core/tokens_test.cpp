#include "core/tokens.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <map>

#include "core/error.hpp"
#include "tests/support/scratch_directory.hpp"

namespace strata {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string header(const std::vector<int32_t>& words) {
  std::string bytes(1024, '\0');
  std::memcpy(bytes.data(), words.data(), words.size() * 4);
  return bytes;
}

std::string bintok_header(const std::vector<int32_t>& words) {
  std::string bytes(1024, '*');
  std::memcpy(bytes.data(), "BIN.TOK\n", 8);
  std::memcpy(bytes.data() + 8, words.data(), words.size() * 4);
  return bytes;
}

template <typename Stored>
std::string packed(const std::vector<int64_t>& tokens) {
  std::string bytes;
  for (const int64_t token : tokens) {
    const auto value = static_cast<Stored>(token);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return bytes;
}

std::vector<int64_t> counting(int64_t count, int64_t first = 0) {
  std::vector<int64_t> tokens(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) tokens[static_cast<size_t>(i)] = first + i;
  return tokens;
}

class Tokens : public ::testing::Test {
 protected:
  std::filesystem::path file(const std::string& name, const std::string& contents) {
    std::ofstream(directory_ / name, std::ios::binary | std::ios::trunc) << contents;
    return directory_ / name;
  }

  std::string refusal(const std::string& contents, DataFormat format = DataFormat::automatic, int64_t vocab = 1000,
                      int64_t length = 2) {
    const std::filesystem::path path = file("f.bin", contents);
    try {
      TokenDataset({.files = {path}, .format = format, .sequence_length = length, .seed = 1, .vocab_size = vocab});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_data) << error.what();
      EXPECT_THAT(error.where(), HasSubstr("f.bin"));
      return error.what();
    }
    return "accepted";
  }

  ScratchDirectory directory_;
};

std::vector<int32_t> all_tokens(const TokenFile& file) {
  std::vector<int32_t> out(file.tokens());
  file.read(0, out.size(), out.data());
  return out;
}

TEST_F(Tokens, EveryFormatIsReadAndRecognized) {
  const auto llmc16 = file("a.bin", header({20240520, 1, 3}) + packed<uint16_t>({1, 65535, 7}));
  const auto llmc32 = file("b.bin", header({20240801, 7, 3}) + packed<uint32_t>({1, 128255, 7}));
  const auto bintok1 = file("c.bin", bintok_header({1, 4, 3}) + packed<int32_t>({1, 150000, 7}));
  const auto bintok2 = file("d.bin", bintok_header({2, 4, 3, 151000, 0}) + packed<int32_t>({1, 150000, 7}));
  const auto text = file("e.txt", "ab\xff");
  const auto raw = file("f.raw", packed<uint16_t>({1, 65535, 7}));
  const auto raw32 = file("g.raw", packed<uint32_t>({1, 70000}));
  EXPECT_THAT(all_tokens(TokenFile(llmc16, DataFormat::automatic)), ElementsAre(1, 65535, 7));
  EXPECT_THAT(all_tokens(TokenFile(llmc32, DataFormat::automatic)), ElementsAre(1, 128255, 7));
  EXPECT_THAT(all_tokens(TokenFile(bintok1, DataFormat::automatic)), ElementsAre(1, 150000, 7));
  EXPECT_THAT(all_tokens(TokenFile(bintok2, DataFormat::automatic)), ElementsAre(1, 150000, 7));
  EXPECT_EQ(TokenFile(bintok2, DataFormat::bintok).stated_vocab_size(), 151000);
  EXPECT_THAT(all_tokens(TokenFile(text, DataFormat::automatic)), ElementsAre(97, 98, 255));
  EXPECT_THAT(all_tokens(TokenFile(raw, DataFormat::raw16)), ElementsAre(1, 65535, 7));
  EXPECT_THAT(all_tokens(TokenFile(raw32, DataFormat::raw32)), ElementsAre(1, 70000));
  EXPECT_EQ(TokenFile(text, DataFormat::automatic).format(), DataFormat::text);
  EXPECT_EQ(TokenFile(llmc16, DataFormat::text).tokens(), 1030u) << "a stated format stands";
}

TEST_F(Tokens, BadFilesAreRefusedWithTheirReason) {
  const std::string three = packed<uint16_t>({1, 2, 3});
  const std::vector<std::tuple<const char*, std::string, DataFormat>> cases = {
      {"empty", "", DataFormat::automatic},
      {"set data.format", "no magic here", DataFormat::automatic},
      {"not an llm.c", std::string(2000, 'x'), DataFormat::llmc},
      {"version 2", header({20240520, 2, 3}) + three, DataFormat::automatic},
      {"version 1; with magic number 20240801 only version 7", header({20240801, 1, 3}) + three, DataFormat::automatic},
      {"states 4 tokens, which take 1032 bytes, but the file has 1030", header({20240520, 1, 4}) + three,
       DataFormat::automatic},
      {"truncated", header({20240520, 1, -1}) + three, DataFormat::automatic},
      {"another format or damaged", header({20240520, 1, 2}) + three, DataFormat::automatic},
      {"truncated", header({20240520, 1, 3}).substr(0, 600), DataFormat::automatic},
      {"no tokens", header({20240520, 1, 0}), DataFormat::automatic},
      {"magic is missing", std::string(2000, 'x'), DataFormat::bintok},
      {"version 3", bintok_header({3, 4, 1, 9, 0}) + "abcd", DataFormat::automatic},
      {"2 bytes per token", bintok_header({2, 2, 2, 9, 0}) + "abcd", DataFormat::automatic},
      {"count of -1", bintok_header({2, 4, -1, 9, 0}) + "abcd", DataFormat::automatic},
      {"mask flag is 7", bintok_header({2, 4, 1, 9, 7}) + "abcd", DataFormat::automatic},
      {"which take 1033 bytes", bintok_header({2, 4, 2, 9, 1}) + packed<int32_t>({1, 2}), DataFormat::automatic},
      {"no whole number of 2-byte tokens", "abc", DataFormat::raw16},
      {"no whole number of 4-byte tokens", "abcdef", DataFormat::raw32},
      {"needs 3 tokens, the longest file has 2", "ab", DataFormat::text},
  };
  for (const auto& [expected, contents, format] : cases) EXPECT_THAT(refusal(contents, format), HasSubstr(expected));
  EXPECT_THROW(TokenFile(directory_ / "absent.bin", DataFormat::automatic), Error);
  EXPECT_THROW(TokenFile(directory_.path(), DataFormat::text), Error) << "a directory";
}

TEST_F(Tokens, TokensOutsideOfTheVocabularyAreFoundWhereverTheyAre) {
  EXPECT_THAT(
      refusal(header({20240520, 1, 5}) + packed<uint16_t>({1, 2, 3, 1000, 4})),
      AllOf(HasSubstr("token 3 has the value 1000"), HasSubstr("vocabulary of 1000"), HasSubstr("offset 1030")));
  EXPECT_THAT(refusal(bintok_header({2, 4, 3, 1, 0}) + packed<int32_t>({1, 2, -5})),
              AllOf(HasSubstr("value -5"), HasSubstr("offset 1032")));
  EXPECT_THAT(refusal(packed<uint32_t>({1, 2, 4294967295}), DataFormat::raw32), HasSubstr("token 2 has the value 4294967295"));
  EXPECT_THAT(refusal("abc\x80", DataFormat::text, 128), HasSubstr("token 3 has the value 128"));
  EXPECT_EQ(refusal("abc\x80", DataFormat::text, 256), "accepted");
  // Beyond the first piece of the streaming pass.
  std::vector<int64_t> many(5'000'000, 999);
  many[4'999'998] = 1000;
  EXPECT_THAT(refusal(packed<uint16_t>(many), DataFormat::raw16), HasSubstr("token 4999998"));
}

/// What a tokenizer makes: a few frequent tokens and many others, none of them in a pattern.
std::vector<int64_t> language(int64_t count, int64_t vocab) {
  std::vector<int64_t> tokens(static_cast<size_t>(count));
  uint64_t state = 1;
  for (int64_t& token : tokens) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const uint64_t range = (state >> 33) % 3 == 0 ? 5 : static_cast<uint64_t>(vocab);
    token = static_cast<int64_t>((state >> 36) % range);
  }
  return tokens;
}

TEST_F(Tokens, TokensOfAnotherWidthAreRefusedWithTheOneTheyHave) {
  const auto tokens = language(1024, 50000);
  const auto wide = language(1024, 128000);
  using Widths = std::vector<std::tuple<std::string, DataFormat, int64_t, std::vector<const char*>>>;
  const auto llmc = [](int32_t magic, int32_t version, int32_t count, const std::string& data) {
    return header({magic, version, count}) + data;
  };
  for (const auto& [contents, format, vocab, expected] : Widths{
           {packed<uint32_t>(tokens), DataFormat::raw16, 50257, {"every second of the 2048 16-bit tokens is 0", "32-bit", "raw32"}},
           {packed<uint32_t>(tokens), DataFormat::raw16, 65536, {"32-bit", "raw32"}},
           {packed<uint32_t>(wide), DataFormat::raw16, 128256, {"is at most 1", "32-bit", "raw32"}},
           {packed<uint32_t>(wide), DataFormat::raw16, 151936, {"is at most 3", "32-bit", "raw32"}},
           {packed<int64_t>(tokens), DataFormat::raw16, 50257, {"look like 64-bit", "<i8", "raw32"}},
           {packed<int64_t>(wide), DataFormat::raw16, 128256, {"look like 64-bit", "<i8"}},
           {packed<int64_t>(tokens), DataFormat::raw32, 50257, {"every second of the 2048 32-bit tokens is 0", "64-bit", "<i8", "<u4"}},
           {llmc(20240520, 1, 2048, packed<uint32_t>(tokens)), DataFormat::automatic, 50257, {"look like 32-bit"}},
           {llmc(20240801, 7, 2048, packed<int64_t>(tokens)), DataFormat::automatic, 50257, {"look like 64-bit"}},
           {bintok_header({2, 4, 2048, 50257, 0}) + packed<int64_t>(tokens), DataFormat::automatic, 50257, {"look like 64-bit"}},
           {packed<uint16_t>(language(1024, 250)), DataFormat::text, 256, {"UTF-16 text or 16-bit tokens", "raw16"}},
           // The other way round the values are not in the vocabulary, and the remedy names the width.
           {packed<uint16_t>(tokens), DataFormat::raw32, 50257, {"not in the model's vocabulary", "raw16"}}}) {
    const std::string said = refusal(contents, format, vocab);
    for (const char* word : expected) EXPECT_THAT(said, HasSubstr(word)) << static_cast<int>(format);
  }
}

TEST_F(Tokens, TheWidthIsJudgedByAThousandTokensAndNoException) {
  EXPECT_EQ(refusal(packed<uint16_t>(language(100'000, 50000)), DataFormat::raw16, 50257), "accepted");
  EXPECT_EQ(refusal(packed<uint32_t>(language(100'000, 128000)), DataFormat::raw32, 128256), "accepted");
  EXPECT_EQ(refusal(packed<uint16_t>(std::vector<int64_t>(5000, 0)), DataFormat::raw16), "accepted") << "zeros alone";
  EXPECT_EQ(refusal(packed<uint16_t>(std::vector<int64_t>(5000, 9)), DataFormat::raw16), "accepted");
  EXPECT_EQ(refusal(packed<uint32_t>(language(511, 900)), DataFormat::raw16), "accepted") << "too short to tell";
  auto almost = packed<uint32_t>(language(4000, 900));
  almost[7 * 4 + 2] = 5;  // the upper half of one token
  EXPECT_EQ(refusal(almost, DataFormat::raw16), "accepted");
}

TEST_F(Tokens, FilesThatAreTooShortEachAreJudgedTogether) {
  std::vector<std::filesystem::path> files;
  for (int i = 0; i < 4; ++i) files.push_back(file("part" + std::to_string(i), packed<int64_t>(language(200, 900))));
  try {
    TokenDataset({.files = files, .format = DataFormat::raw32, .sequence_length = 2, .seed = 1, .vocab_size = 1000});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("every second of the 1600 32-bit tokens"), HasSubstr("part0")));
  }
}

TEST_F(Tokens, AFileThatIsChangedAfterItWasCheckedIsFoundWhenItIsRead) {
  for (const auto& [bad, vocab] : {std::pair<int64_t, int64_t>{2'000'000'000, 1000}, {1000, 1000}, {-3, 1000}}) {
    const auto path = file("run.bin", packed<uint32_t>(counting(100)));
    const TokenDataset data(
        {.files = {path}, .format = DataFormat::raw32, .sequence_length = 10, .seed = 1, .vocab_size = vocab});
    auto tokens = counting(100);
    tokens[40] = bad;  // the last label of sample 3 and the first token of sample 4
    file("run.bin", packed<uint32_t>(tokens));
    int32_t out[10], labels[10];
    data.sample_at(2, out, labels);
    for (const uint64_t place : {3u, 4u}) {
      try {
        data.sample_at(place, out, labels);
        FAIL() << bad;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::data_corruption);
        EXPECT_THAT(error.what(), AllOf(HasSubstr("token 40"), HasSubstr("vocabulary of 1000"), HasSubstr("run.bin, offset 160"),
                                        HasSubstr("changed after it was checked")));
      }
    }
    std::filesystem::resize_file(path, 50 * 4);
    EXPECT_THROW(data.sample_at(6, out, labels), Error) << "cut off under the run";
  }
}

TEST_F(Tokens, ALongCheckTellsItsProgressAndCanBeGivenUp) {
  const auto path = file("zeros.bin", "");
  std::filesystem::resize_file(path, uint64_t{64} << 30);  // takes no space
  uint64_t calls = 0, last_total = 0;
  const auto give_up = [&](uint64_t done, uint64_t total) {
    EXPECT_LE(done, total);
    last_total = total;
    if (++calls == 3) throw Error(ErrorCode::cancelled, "enough");
  };
  try {
    TokenDataset({.files = {path}, .format = DataFormat::raw16, .sequence_length = 5, .seed = 1, .vocab_size = 100,
                  .on_progress = give_up});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::cancelled);
  }
  EXPECT_EQ(calls, 3u);
  EXPECT_EQ(last_total, uint64_t{64} << 30);
}

TEST_F(Tokens, EveryEpochVisitsEachSampleOnceInAnOrderOfItsOwn) {
  const auto a = file("a", packed<uint16_t>(counting(31))), b = file("b", packed<uint16_t>(counting(3, 500))),
             c = file("c", packed<uint16_t>(counting(26, 100)));
  const TokenDataset data(
      {.files = {a, b, c}, .format = DataFormat::raw16, .sequence_length = 5, .seed = 9, .vocab_size = 1000});
  ASSERT_EQ(data.samples(), 6u + 0u + 5u);
  EXPECT_EQ(data.tokens(), 60u);
  std::vector<std::vector<int32_t>> orders;
  for (uint64_t epoch = 0; epoch < 2; ++epoch) {
    std::map<int32_t, int> firsts;
    auto& order = orders.emplace_back();
    for (uint64_t i = 0; i < data.samples(); ++i) {
      std::vector<int32_t> tokens(5), labels(5);
      data.sample(epoch * data.samples() + i, tokens.data(), labels.data());
      for (int k = 0; k < 5; ++k) {
        EXPECT_EQ(tokens[static_cast<size_t>(k)], tokens[0] + k);
        EXPECT_EQ(labels[static_cast<size_t>(k)], tokens[0] + k + 1);
      }
      ++firsts[tokens[0]];
      order.push_back(tokens[0]);
    }
    EXPECT_EQ(firsts.size(), data.samples());
    EXPECT_TRUE(firsts.contains(25) && firsts.contains(100) && firsts.contains(120));
  }
  EXPECT_NE(orders[0], orders[1]);
  const TokenDataset again(
      {.files = {a, b, c}, .format = DataFormat::raw16, .sequence_length = 5, .seed = 9, .vocab_size = 1000});
  const TokenDataset other(
      {.files = {a, b, c}, .format = DataFormat::raw16, .sequence_length = 5, .seed = 10, .vocab_size = 1000});
  bool differs = false;
  for (uint64_t i = 0; i < data.samples(); ++i) {
    std::vector<int32_t> x(5), y(5), z(5), labels(5);
    data.sample(i, x.data(), labels.data());
    again.sample(i, y.data(), labels.data());
    other.sample(i, z.data(), labels.data());
    EXPECT_EQ(x, y);
    differs = differs || x != z;
  }
  EXPECT_TRUE(differs);
}

// A resumed run must see the same data on any later version, so the order itself is pinned.
TEST_F(Tokens, TheOrderIsFixed) {
  const auto path = file("a", packed<uint16_t>(counting(21)));
  const TokenDataset data(
      {.files = {path}, .format = DataFormat::raw16, .sequence_length = 2, .seed = 42, .vocab_size = 100});
  std::vector<int32_t> order;
  for (uint64_t i = 0; i < 10; ++i) {
    int32_t tokens[2], labels[2];
    data.sample(i, tokens, labels);
    order.push_back(tokens[0] / 2);
  }
  EXPECT_THAT(order, ElementsAre(8, 9, 2, 3, 5, 6, 4, 7, 0, 1));
}

TEST_F(Tokens, MaskedTokensAreIgnoredAsLabels) {
  // Tokens 0..10; those that count are 3, 4, 8 and 9.
  const auto path = file("m.bin", bintok_header({2, 4, 11, 100, 1}) + packed<int32_t>(counting(11)) +
                                      packed<uint8_t>({0b00011000, 0b00000011}));
  const TokenDataset data({.files = {path}, .sequence_length = 5, .seed = 1, .vocab_size = 100});
  std::vector<int32_t> tokens(5), labels(5);
  data.sample_at(0, tokens.data(), labels.data());
  EXPECT_THAT(tokens, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(labels, ElementsAre(-100, -100, 3, 4, -100));
  data.sample_at(1, tokens.data(), labels.data());
  EXPECT_THAT(tokens, ElementsAre(5, 6, 7, 8, 9));
  EXPECT_THAT(labels, ElementsAre(-100, -100, 8, 9, -100));
  EXPECT_THROW(data.sample_at(2, tokens.data(), labels.data()), Error);
}

TEST_F(Tokens, CountsGoBeyondThirtyTwoBits) {
  // A sparse file: 2^32 + 100 uint16 tokens whose header holds the count's low half.
  const auto path = file("huge.bin", header({20240520, 1, 100}));
  constexpr uint64_t kTokens = (uint64_t{1} << 32) + 100;
  const int descriptor = ::open(path.c_str(), O_WRONLY);
  ASSERT_GE(descriptor, 0);
  const bool sparse = ::ftruncate(descriptor, static_cast<off_t>(1024 + kTokens * 2)) == 0;
  const uint16_t last = 77;
  const bool written = sparse && ::pwrite(descriptor, &last, 2, static_cast<off_t>(1024 + (kTokens - 1) * 2)) == 2;
  ::close(descriptor);
  if (!written) GTEST_SKIP() << "no sparse file of 8 GiB can be made here";
  const TokenDataset data({.files = {path}, .sequence_length = 1, .seed = 1, .vocab_size = 100, .check_tokens = false});
  EXPECT_EQ(data.tokens(), kTokens);
  EXPECT_EQ(data.samples(), kTokens - 1);
  int32_t token = 0, label = 0;
  data.sample_at(kTokens - 2, &token, &label);
  EXPECT_EQ(label, 77);
}

}  // namespace
}  // namespace strata
