#include "core/token_meta.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/content_hash.hpp"
#include "core/error.hpp"
#include "core/tokens.hpp"
#include "tests/support/files.hpp"
#include "tests/support/scratch_directory.hpp"

namespace strata {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TokenMetaTest : public ::testing::Test {
 protected:
  TokenMetaTest() {
    std::filesystem::create_directory(model());
    write_file(file(), std::string("\1\0\2\0\3\0\4\0", 8));
  }
  std::filesystem::path model() const { return directory_ / "model"; }
  std::filesystem::path file() const { return directory_ / "tokens.bin"; }
  void write_meta(const TokenMeta& meta) { write_file(token_meta_path(file()), meta.to_json()); }

  std::string open(int64_t vocab_size, DataFormat format = DataFormat::raw16) {
    try {
      TokenDataset({.files = {file()}, .format = format, .sequence_length = 2, .seed = 1, .vocab_size = vocab_size,
                    .model_directory = model()});
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("\n  try: "));
      return error.what();
    }
    return "accepted";
  }

  ScratchDirectory directory_;
};

std::string refusal(const std::string& text) {
  try {
    TokenMeta::from_json(text, "t.meta.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_data);
    return error.what();
  }
  return "accepted";
}

TEST_F(TokenMetaTest, IsReadAsItWasWritten) {
  write_meta({"uint16", 4, 1000, hash_text("x")});
  const auto meta = read_token_meta(file());
  ASSERT_TRUE(meta);
  EXPECT_EQ(meta->dtype, "uint16");
  EXPECT_EQ(meta->tokens, 4u);
  EXPECT_EQ(meta->vocab_size, 1000);
  EXPECT_EQ(meta->tokenizer_xxh3, hash_text("x"));
  EXPECT_FALSE(read_token_meta(directory_ / "other.bin"));
}

TEST_F(TokenMetaTest, EverythingWrongIsListedAtOnce) {
  const std::string head = R"({"format": "strata-tokens", "version": 1, )";
  EXPECT_EQ(refusal(head + R"("dtype": "int32", "tokens": 3, "vocab_size": 7, "notes": {"made by": "me"}})"), "accepted");
  EXPECT_THAT(refusal(head + R"("dtype": "int64", "tokens": -1, "vocab_size": 0, "tokenizer_xxh3": "ABC", "vocab": 3})"),
              AllOf(HasSubstr("5 problems"), HasSubstr("/dtype"), HasSubstr("/tokens"), HasSubstr("/vocab_size"),
                    HasSubstr("32 hexadecimal"), HasSubstr("/vocab: unknown key")));
  EXPECT_THAT(refusal(head + R"("tokens": 1})"), AllOf(HasSubstr("/dtype: is missing"), HasSubstr("/vocab_size: is missing")));
  EXPECT_THAT(refusal(R"({"format": "strata-tokens", "version": 2})"), HasSubstr("\"version\" 1"));
  for (const char* text : {"", "[]", "{}", "{\"format\": \"other\", \"version\": 1}"}) EXPECT_NE(refusal(text), "accepted") << text;
  EXPECT_THAT(refusal(std::string(head + "\"dtype\": \"int32\", \"tokens\": 3, \"vocab_size\": 7}") + '\0' + "{}"), HasSubstr("NUL"));
}

TEST_F(TokenMetaTest, TheTokenizerIsItsFileOrItsFilesInAFixedOrder) {
  EXPECT_FALSE(tokenizer_identity(model()));
  EXPECT_FALSE(tokenizer_identity(directory_ / "nowhere"));
  write_file(model() / "vocab.json", "{}");
  write_file(model() / "merges.txt", "a b");
  const auto pair = tokenizer_identity(model());
  ASSERT_TRUE(pair);
  EXPECT_THAT(pair->files, ElementsAre("vocab.json", "merges.txt"));
  EXPECT_EQ(pair->xxh3, hash_text("vocab.json " + hash_text("{}") + "\nmerges.txt " + hash_text("a b") + "\n"));
  write_file(model() / "tokenizer.json", "{\"version\": 1}");
  const auto one = tokenizer_identity(model());
  EXPECT_THAT(one->files, ElementsAre("tokenizer.json"));
  EXPECT_EQ(one->xxh3, hash_text("{\"version\": 1}"));
}

TEST_F(TokenMetaTest, WhatAgreesWithTheModelIsAccepted) {
  EXPECT_EQ(open(1000), "accepted") << "no description";
  write_meta({"uint16", 4, 1000, ""});
  EXPECT_EQ(open(1000), "accepted");
  write_file(model() / "tokenizer.json", "{}");
  EXPECT_EQ(open(1000), "accepted") << "the description names no tokenizer";
  write_meta({"uint16", 4, 1000, hash_text("{}")});
  EXPECT_EQ(open(1000), "accepted");
  EXPECT_EQ(open(1024), "accepted") << "the same tokenizer, and a vocabulary padded to a round number";
}

TEST_F(TokenMetaTest, WhatIsOfAnotherFileOrModelIsRefusedWithBothSidesNamed) {
  write_file(model() / "tokenizer.json", "{}");
  const std::string ours = hash_text("{}"), theirs = hash_text("[]");
  write_meta({"uint16", 4, 1000, theirs});
  EXPECT_THAT(open(1000), AllOf(HasSubstr("tokens.bin.meta.json"), HasSubstr(ours), HasSubstr(theirs), HasSubstr(model().string())));
  write_meta({"uint16", 4, 50257, ours});
  EXPECT_THAT(open(1000), AllOf(HasSubstr("a vocabulary of 50257"), HasSubstr("has one of 1000")));
  write_meta({"uint16", 4, 900, ""});
  EXPECT_THAT(open(1000), AllOf(HasSubstr("a vocabulary of 900"), HasSubstr("names no tokenizer")));
  write_meta({"uint16", 5, 1000, ours});
  EXPECT_THAT(open(1000), AllOf(HasSubstr("describes 5 uint16 tokens"), HasSubstr("holds 4 uint16 tokens")));
  write_meta({"uint32", 4, 1000, ours});
  EXPECT_THAT(open(1000), AllOf(HasSubstr("4 uint32 tokens"), HasSubstr("4 uint16 tokens")));
  std::filesystem::remove(model() / "tokenizer.json");
  write_meta({"uint16", 4, 900, ours});
  EXPECT_THAT(open(1000), HasSubstr("no tokenizer to compare"));
  write_file(token_meta_path(file()), "{");
  EXPECT_THAT(open(1000), HasSubstr("tokens.bin.meta.json"));
  std::filesystem::remove(token_meta_path(file()));
  std::filesystem::create_symlink("nowhere", token_meta_path(file()));
  EXPECT_THAT(open(1000), HasSubstr("symbolic link")) << "a description that cannot be read is not taken for none";
}

TEST_F(TokenMetaTest, TextIsReadAsBytesOnlyForAModelOfBytes) {
  std::filesystem::remove(file());
  write_file(directory_ / "text.txt", "some text to read");
  const auto open_text = [&](int64_t vocab_size, DataFormat format) {
    try {
      TokenDataset({.files = {directory_ / "text.txt"}, .format = format, .sequence_length = 2, .seed = 1, .vocab_size = vocab_size,
                    .model_directory = model()});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_configuration);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  // Without a tokenizer, a vocabulary of at most 256 is one of bytes, and every byte is checked against it.
  EXPECT_EQ(open_text(256, DataFormat::automatic), "accepted");
  EXPECT_EQ(open_text(128, DataFormat::text), "accepted");
  EXPECT_THAT(open_text(1000, DataFormat::automatic),
              AllOf(HasSubstr("text.txt"), HasSubstr("a vocabulary of 1000"), HasSubstr("docs/data.md")));
  EXPECT_THAT(open_text(257, DataFormat::text), HasSubstr("a vocabulary of 257"));
  write_file(model() / "tokenizer.json", "{}");
  EXPECT_THAT(open_text(1000, DataFormat::automatic), AllOf(HasSubstr("tokenizer.json"), HasSubstr("tokenize")));
  EXPECT_THAT(open_text(1000, DataFormat::text), HasSubstr("tokenizer.json"));
  EXPECT_THAT(open_text(128, DataFormat::text), HasSubstr("tokenizer.json"));
  EXPECT_THAT(open_text(256, DataFormat::automatic), HasSubstr("set data.format to text"));
  EXPECT_EQ(open_text(256, DataFormat::text), "accepted");
}

}  // namespace
}  // namespace strata
