// What `strata inspect` tells of token files and of their descriptions.
#include <algorithm>
#include <map>

#include "cli/console.hpp"
#include "cli/inspectors.hpp"
#include "core/error.hpp"
#include "core/model.hpp"
#include "core/token_meta.hpp"
#include "core/tokens.hpp"

namespace strata::cli {

namespace {

namespace fs = std::filesystem;

Facts meta_facts(const TokenMeta& meta) {
  return {{"dtype", meta.dtype},
          {"tokens", meta.tokens},
          {"vocab_size", meta.vocab_size},
          {"tokenizer_xxh3", meta.tokenizer_xxh3.empty() ? Facts(nullptr) : Facts(meta.tokenizer_xxh3)}};
}

/// What FILE.meta.json says, and how it disagrees with the file.
void add_meta(const TokenFile& file, int64_t largest, Facts& facts) {
  try {
    const auto meta = read_token_meta(file.path());
    if (!meta) return;
    facts["description"] = meta_facts(*meta);
    check_meta_of_file(*meta, file);
    if (largest >= meta->vocab_size)
      facts["problem"] = fmt::format("its description states a vocabulary of {}, and the file holds the token {}", meta->vocab_size,
                                     largest);
  } catch (const Error& error) {
    facts["problem"] = error.what();
  }
}

}  // namespace

const std::map<std::string, DataFormat>& token_formats() {
  static const std::map<std::string, DataFormat> formats = {
      {"auto", DataFormat::automatic}, {"llmc", DataFormat::llmc},   {"bintok", DataFormat::bintok},
      {"raw16", DataFormat::raw16},    {"raw32", DataFormat::raw32}, {"text", DataFormat::text}};
  return formats;
}

void require_known_format(const fs::path& path, DataFormat format) {
  if (format != DataFormat::automatic || recognized_token_format(ReadOnlyFile(path))) return;
  throw Error(ErrorCode::invalid_data, "it is nothing that Strata recognizes: a token file would begin with a known magic number",
              path.string(),
              "for tokens without a header give --format raw16, raw32 or text; otherwise name a model, checkpoint, run or NVMe "
              "directory, a .safetensors file or a config.json");
}

Facts inspect_tokens(const fs::path& path, DataFormat format) {
  require_known_format(path, format);
  const TokenFile file(path, format);
  constexpr uint64_t kPieceTokens = 1 << 20;
  std::vector<int32_t> tokens(std::min(kPieceTokens, file.tokens()));
  std::vector<uint8_t> masks(file.has_masks() ? tokens.size() : 0);
  int64_t smallest = INT64_MAX, largest = INT64_MIN;
  uint64_t masked = 0;
  TokenWidths widths(file.token_bytes(), std::max<int64_t>(file.stated_vocab_size().value_or(0), 0));
  ProgressLine progress("tokens");
  for (uint64_t first = 0; first < file.tokens(); first += kPieceTokens) {
    const uint64_t count = std::min(kPieceTokens, file.tokens() - first);
    file.read(first, count, tokens.data());
    widths.add(tokens.data(), count);
    for (uint64_t i = 0; i < count; ++i) {
      const int64_t token = file.signed_tokens() ? tokens[i] : static_cast<int64_t>(static_cast<uint32_t>(tokens[i]));
      smallest = std::min(smallest, token);
      largest = std::max(largest, token);
    }
    if (file.has_masks()) {
      file.read_masks(first, count, masks.data());
      masked += static_cast<uint64_t>(std::count(masks.begin(), masks.begin() + static_cast<int64_t>(count), 0));
    }
    progress.show(first + count, file.tokens());
  }
  const auto name = std::find_if(token_formats().begin(), token_formats().end(),
                                 [&](const auto& known) { return known.second == file.format(); });
  Facts facts = {{"format", name->first},
                 {"tokens", file.tokens()},
                 {"bits_per_token", 8 * file.token_bytes()},
                 {"masked_tokens", file.has_masks() ? Facts(masked) : Facts(nullptr)},
                 {"stated_vocab_size", file.stated_vocab_size() ? Facts(*file.stated_vocab_size()) : Facts(nullptr)},
                 {"smallest_token", smallest},
                 {"largest_token", largest},
                 {"file_bytes", fs::file_size(path)}};
  add_meta(file, largest, facts);
  if (const auto suspicion = widths.suspicion()) facts["problem"] = suspicion->what + "\n" + suspicion->remedy;
  return facts;
}

Facts inspect_token_meta(const fs::path& file) { return meta_facts(TokenMeta::read(file)); }

void write_token_meta(const fs::path& path, DataFormat format, const fs::path& model_directory) {
  require_known_format(path, format);
  const TokenFile file(path, format);
  const int64_t vocab_size = read_model_description(model_directory).vocab_size;
  const auto tokenizer = tokenizer_identity(model_directory);
  const fs::path meta_path = token_meta_path(path);
  // A file of another kind that happens to have the name is not ours to replace.
  if (is_named(meta_path)) TokenMeta::read(meta_path);
  ProgressLine progress("checking the tokens");
  uint64_t done = 0;
  file.check_tokens(vocab_size, [&](uint64_t bytes) { progress.show(done += bytes, file.tokens() * file.token_bytes()); });
  const std::string text = token_meta_of(file, vocab_size, tokenizer).to_json();
  write_file_atomically(meta_path, text.data(), text.size());
  narrate(fmt::format("wrote {}: a vocabulary of {}, {}", meta_path.string(), vocab_size,
                      tokenizer ? "tokenizer " + tokenizer->xxh3 : std::string("no tokenizer, as the model's directory has none")));
}

}  // namespace strata::cli
