// The identity of a token file: FILE.meta.json beside it says which vocabulary and tokenizer its tokens are of (docs/formats.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace strata {

class TokenFile;

/// The files of a model directory that say how text becomes tokens.
struct TokenizerIdentity {
  /// XXH3-128 of tokenizer.json where there is one; otherwise of a line "NAME HASH\n" for each of tokenizer.model, tekken.json,
  /// spiece.model, vocab.json, merges.txt and vocab.txt that is there, in this order, HASH being the XXH3-128 of the file.
  std::string xxh3;
  std::vector<std::string> files;
};
/// Absent when the directory has none of those files or is not there. Throws io.
std::optional<TokenizerIdentity> tokenizer_identity(const std::filesystem::path& model_directory);

struct TokenMeta {
  std::string dtype;  // uint8, uint16, uint32 or int32: of the stored tokens
  uint64_t tokens = 0;
  int64_t vocab_size = 0;      // every token is less
  std::string tokenizer_xxh3;  // TokenizerIdentity::xxh3; empty: not stated

  std::string to_json() const;
  /// Throws one invalid_data that lists everything wrong.
  static TokenMeta from_json(std::string_view text, const std::string& name);
  /// Reads one by its own path. Throws invalid_data or io.
  static TokenMeta read(const std::filesystem::path& file);
};

/// FILE.meta.json.
std::filesystem::path token_meta_path(const std::filesystem::path& token_file);
/// Absent when the file has none. Throws invalid_data or io.
std::optional<TokenMeta> read_token_meta(const std::filesystem::path& token_file);

/// What a token file would state: its own type and count, for a model's vocabulary and tokenizer.
TokenMeta token_meta_of(const TokenFile& file, int64_t vocab_size, const std::optional<TokenizerIdentity>& tokenizer);

/// Throws invalid_data, naming both sides, where the sidecar is of another file: another type or count.
void check_meta_of_file(const TokenMeta& meta, const TokenFile& file);
/// Throws invalid_data, naming both sides, where the tokens are not the model's: of another tokenizer, of a larger vocabulary, or, when
/// the tokenizers cannot be compared, of a vocabulary of another size. (With the same tokenizer the model's may be larger: padded.)
void check_meta_of_model(const TokenMeta& meta, const TokenFile& file, const std::filesystem::path& model_directory, int64_t vocab_size,
                         const std::optional<TokenizerIdentity>& tokenizer);

}  // namespace strata
