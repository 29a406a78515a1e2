#include "core/token_meta.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <system_error>

#include "core/content_hash.hpp"
#include "core/json.hpp"
#include "core/json_fields.hpp"
#include "core/tokens.hpp"

namespace strata {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormat = "strata-tokens";
constexpr JsonLimits kLimits{.bytes = 1 << 20, .values = 10'000, .depth = 16};
constexpr const char* kMakeAgain = "remove it, or make it again: strata inspect FILE --write-meta MODEL_DIR";

bool is_hash(const std::string& text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string dtype_of(const TokenFile& file) {
  if (file.signed_tokens()) return "int32";
  return file.token_bytes() == 4 ? "uint32" : file.token_bytes() == 2 ? "uint16" : "uint8";
}

[[noreturn]] void refuse(const std::string& what, const TokenFile& file, const std::string& remedy) {
  throw Error(ErrorCode::invalid_data, what, token_meta_path(file.path()).string(), remedy);
}

}  // namespace

std::optional<TokenizerIdentity> tokenizer_identity(const fs::path& model_directory) {
  const auto has = [&](const char* name) {
    std::error_code error;
    return fs::is_regular_file(model_directory / name, error);
  };
  if (has("tokenizer.json")) return TokenizerIdentity{hash_file(model_directory / "tokenizer.json"), {"tokenizer.json"}};
  TokenizerIdentity identity;
  std::string lines;
  for (const char* name : {"tokenizer.model", "tekken.json", "spiece.model", "vocab.json", "merges.txt", "vocab.txt"}) {
    if (!has(name)) continue;
    identity.files.emplace_back(name);
    lines += fmt::format("{} {}\n", name, hash_file(model_directory / name));
  }
  if (identity.files.empty()) return std::nullopt;
  identity.xxh3 = hash_text(lines);
  return identity;
}

std::string TokenMeta::to_json() const {
  OrderedJson json = {{"format", kFormat}, {"version", 1}, {"dtype", dtype}, {"tokens", tokens}, {"vocab_size", vocab_size}};
  if (!tokenizer_xxh3.empty()) json["tokenizer_xxh3"] = tokenizer_xxh3;
  return json.dump(2) + "\n";
}

TokenMeta TokenMeta::from_json(std::string_view text, const std::string& name) {
  const Json json = parse_json(text, name, ErrorCode::invalid_data, kLimits);
  Problems problems;
  ObjectReader reader(&json, "", problems);
  std::string format;
  int64_t version = 0;
  reader.text("format", format);
  reader.integer("version", version, 1, INT32_MAX);
  if (format != kFormat || version != 1)
    throw Error(ErrorCode::invalid_data,
                fmt::format("it describes no token file in a way that is known: \"format\" must be \"{}\" and \"version\" 1", kFormat),
                name, kMakeAgain);
  TokenMeta meta;
  const std::vector<std::pair<std::string, std::string>> dtypes = {
      {"uint8", "uint8"}, {"uint16", "uint16"}, {"uint32", "uint32"}, {"int32", "int32"}};
  reader.choice("dtype", meta.dtype, dtypes);
  reader.unsigned_integer("tokens", meta.tokens);
  reader.integer("vocab_size", meta.vocab_size, 1, INT32_MAX);
  for (const char* key : {"dtype", "tokens", "vocab_size"})
    if (!reader.has(key)) reader.problem(key, "is missing");
  reader.text("tokenizer_xxh3", meta.tokenizer_xxh3);
  if (!meta.tokenizer_xxh3.empty() && !is_hash(meta.tokenizer_xxh3)) reader.problem("tokenizer_xxh3", "must be 32 hexadecimal digits");
  reader.find("notes");  // for people
  reader.refuse_unknown();
  if (!problems.empty()) problems.raise(ErrorCode::invalid_data, name, kMakeAgain);
  return meta;
}

fs::path token_meta_path(const fs::path& token_file) {
  fs::path path = token_file;
  path += ".meta.json";
  return path;
}

std::optional<TokenMeta> read_token_meta(const fs::path& token_file) {
  const fs::path path = token_meta_path(token_file);
  if (!is_named(path)) return std::nullopt;
  return TokenMeta::read(path);
}

TokenMeta TokenMeta::read(const fs::path& path) {
  const ReadOnlyFile file(path);
  if (file.size() > kLimits.bytes)
    throw Error(ErrorCode::invalid_data, fmt::format("the description of a token file has {} bytes", file.size()), path.string(),
                kMakeAgain);
  std::string text(file.size(), '\0');
  file.read(0, text.data(), text.size());
  return TokenMeta::from_json(text, path.string());
}

TokenMeta token_meta_of(const TokenFile& file, int64_t vocab_size, const std::optional<TokenizerIdentity>& tokenizer) {
  return {dtype_of(file), file.tokens(), vocab_size, tokenizer ? tokenizer->xxh3 : std::string()};
}

void check_meta_of_file(const TokenMeta& meta, const TokenFile& file) {
  if (meta.dtype == dtype_of(file) && meta.tokens == file.tokens()) return;
  refuse(fmt::format("it describes {} {} tokens, the file {} holds {} {} tokens", meta.tokens, meta.dtype, shown_text(file.path().string()),
                     file.tokens(), dtype_of(file)),
         file, "check data.format, or get the file and its description from one place; " + std::string(kMakeAgain));
}

void check_meta_of_model(const TokenMeta& meta, const TokenFile& file, const fs::path& model_directory, int64_t vocab_size,
                         const std::optional<TokenizerIdentity>& tokenizer) {
  const std::string model = shown_text(model_directory.string());
  if (meta.vocab_size > vocab_size)
    refuse(fmt::format("the tokens are of a vocabulary of {}, the model in {} has one of {}", meta.vocab_size, model, vocab_size), file,
           "tokenize with this model's tokenizer");
  if (tokenizer && !meta.tokenizer_xxh3.empty()) {
    if (tokenizer->xxh3 == meta.tokenizer_xxh3) return;
    refuse(fmt::format("the tokens were made by a tokenizer with the hash {}, the one in {} has {} ({})", meta.tokenizer_xxh3, model,
                       tokenizer->xxh3, fmt::join(tokenizer->files, ", ")),
           file,
           "tokenize with this model's tokenizer; if it is the same one in other words, say so with strata inspect FILE --write-meta "
           "MODEL_DIR");
  }
  if (meta.vocab_size != vocab_size)
    refuse(fmt::format("the tokens are of a vocabulary of {}, the model in {} has one of {}, and {}", meta.vocab_size, model, vocab_size,
                       tokenizer ? "the description names no tokenizer" : "that directory has no tokenizer to compare"),
           file,
           tokenizer ? "tokenize with this model's tokenizer, or say that it was: strata inspect FILE --write-meta MODEL_DIR"
                     : "copy the tokenizer's files into the model directory, or tokenize with this model's tokenizer");
}

}  // namespace strata
