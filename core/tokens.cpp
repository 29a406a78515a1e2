#include "core/tokens.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "core/error.hpp"
#include "core/printable.hpp"
#include "core/token_meta.hpp"

namespace strata {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian and are read as they are");

constexpr uint64_t kHeaderBytes = 1024;
constexpr int32_t kLlmcMagic16 = 20240520, kLlmcMagic32 = 20240801;
constexpr char kBintokMagic[8] = {'B', 'I', 'N', '.', 'T', 'O', 'K', '\n'};
constexpr int32_t kBintokUnused = 0x2a2a2a2a;  // its writer fills the rest of the header with '*'
constexpr uint64_t kPieceBytes = 4 << 20;

using Header = std::array<int32_t, 256>;

bool is_llmc(const Header& header) { return header[0] == kLlmcMagic16 || header[0] == kLlmcMagic32; }
bool is_bintok(const Header& header) { return std::memcmp(header.data(), kBintokMagic, sizeof kBintokMagic) == 0; }

/// The header, or zeros in place of what a short file does not have.
Header read_header(const ReadOnlyFile& file) {
  Header header{};
  file.read(0, header.data(), std::min<uint64_t>(file.size(), sizeof header));
  return header;
}

[[noreturn]] void refuse(const std::string& what, const std::filesystem::path& path, const std::string& remedy) {
  throw Error(ErrorCode::invalid_data, what, path.string(), remedy);
}

/// The first element that is not in [0, limit), or count. The plain reduction is what the compiler vectorizes; the
/// search for the place runs only where it is needed.
template <typename Stored>
uint64_t first_outside(const Stored* values, uint64_t count, uint64_t limit) {
  constexpr uint64_t kGroup = 4096;
  for (uint64_t begin = 0; begin < count; begin += kGroup) {
    const uint64_t end = std::min(begin + kGroup, count);
    Stored largest = 0;
    for (uint64_t i = begin; i < end; ++i) largest = std::max(largest, values[i]);
    if (largest < limit) continue;
    return static_cast<uint64_t>(
        std::find_if(values + begin, values + end, [&](Stored value) { return value >= limit; }) - values);
  }
  return count;
}

template <typename Stored>
void widen(const char* bytes, uint64_t count, int32_t* out) {
  for (uint64_t i = 0; i < count; ++i) {
    Stored value;
    std::memcpy(&value, bytes + i * sizeof(Stored), sizeof(Stored));
    out[i] = static_cast<int32_t>(value);
  }
}

}  // namespace

std::optional<DataFormat> recognized_token_format(const ReadOnlyFile& file) {
  const Header header = read_header(file);
  if (is_llmc(header)) return DataFormat::llmc;
  if (is_bintok(header)) return DataFormat::bintok;
  const std::string extension = file.path().extension().string();
  if (extension == ".txt" || extension == ".text" || extension == ".md") return DataFormat::text;
  return std::nullopt;
}

TokenFile::TokenFile(const std::filesystem::path& path, DataFormat format)
    : path_(path), file_(std::make_shared<const ReadOnlyFile>(path)), size_(file_->size()), format_(format) {
  if (size_ == 0) refuse("the token file is empty", path, "check how the file was made");
  if (format_ == DataFormat::automatic) {
    const std::optional<DataFormat> recognized = recognized_token_format(*file_);
    if (!recognized) {
      refuse("the format of the token file is not recognized: it begins with no known magic number", path,
             "set data.format to raw16, raw32 or text if the file has no header");
    }
    format_ = *recognized;
  }
  switch (format_) {
    case DataFormat::llmc: open_llmc(); break;
    case DataFormat::bintok: open_bintok(); break;
    case DataFormat::raw16: open_raw(2); break;
    case DataFormat::raw32: open_raw(4); break;
    default: open_raw(1); break;
  }
  if (tokens_ == 0) refuse("the token file holds no tokens", path, "check how the file was made");
}

void TokenFile::release() { file_.reset(); }

std::shared_ptr<const ReadOnlyFile> TokenFile::file() const {
  if (file_) return file_;
  auto again = std::make_shared<const ReadOnlyFile>(path_);
  if (again->size() != size_) {
    refuse(fmt::format("the file has {} bytes, it had {} when the run began", again->size(), size_), path_,
           "put the file back as it was; the same command then continues");
  }
  return again;
}

void TokenFile::open_llmc() {
  const Header header = read_header(*file_);
  if (!is_llmc(header)) {
    refuse(fmt::format("not an llm.c token file: its magic number is {}, not {} or {}", header[0], kLlmcMagic16,
                       kLlmcMagic32),
           path(), "set data.format to what the file is, or to auto");
  }
  const bool wide = header[0] == kLlmcMagic32;
  const int32_t version = wide ? 7 : 1;
  if (header[1] != version) {
    refuse(fmt::format("an llm.c token file of version {}; with magic number {} only version {} is read", header[1],
                       header[0], version),
           path(), "make the file again with a current tool");
  }
  token_bytes_ = wide ? 4 : 2;
  tokens_offset_ = kHeaderBytes;
  tokens_ = static_cast<uint32_t>(header[2]);
  if (size_ > kHeaderBytes) {
    const uint64_t present = (size_ - kHeaderBytes) / token_bytes_;
    if (present > UINT32_MAX && (present & UINT32_MAX) == tokens_) tokens_ = present;
  }
  check_size(kHeaderBytes + tokens_ * token_bytes_);
}

void TokenFile::open_bintok() {
  const Header header = read_header(*file_);
  if (!is_bintok(header))
    refuse("not a BIN.TOK token file: its magic is missing", path(), "set data.format to what the file is, or to auto");
  const int32_t version = header[2], bytes = header[3], count = header[4], vocab = header[5], masks = header[6];
  if (version != 1 && version != 2) {
    refuse(fmt::format("a BIN.TOK file of version {}; versions 1 and 2 are read", version), path(),
           "make the file again with a current tool");
  }
  if (bytes != 4)
    refuse(fmt::format("a BIN.TOK file with {} bytes per token; only 4 are read", bytes), path(), "write int32 tokens");
  if (count < 0)
    refuse(fmt::format("a BIN.TOK file with a token count of {}", count), path(),
           "the header is damaged; make the file again");
  if (version == 2 && masks != 0 && masks != 1 && masks != kBintokUnused) {
    refuse(fmt::format("a BIN.TOK file whose mask flag is {}", masks), path(),
           "the header is damaged; make the file again");
  }
  token_bytes_ = 4;
  tokens_offset_ = kHeaderBytes;
  tokens_ = static_cast<uint64_t>(count);
  uint64_t end = kHeaderBytes + tokens_ * 4;
  if (version == 2) vocab_size_ = vocab;
  if (version == 2 && masks == 1) {
    masks_offset_ = end;
    end += (tokens_ + 7) / 8;
  }
  check_size(end);
}

void TokenFile::open_raw(uint32_t token_bytes) {
  token_bytes_ = token_bytes;
  tokens_ = size_ / token_bytes;
  if (size_ % token_bytes != 0) {
    refuse(fmt::format("the file has {} bytes, no whole number of {}-byte tokens", size_, token_bytes), path(),
           "check data.format, or get a whole copy of the file");
  }
}

void TokenFile::check_size(uint64_t expected_bytes) const {
  if (size_ == expected_bytes) return;
  refuse(fmt::format("the header states {} tokens, which take {} bytes, but the file has {} bytes", tokens_,
                     expected_bytes, size_),
         path(),
         size_ < expected_bytes ? "the file is truncated; get a whole copy of it"
                                       : "the file is of another format or damaged");
}

void TokenFile::read(uint64_t first, uint64_t count, int32_t* out) const {
  STRATA_CHECK(first <= tokens_ && count <= tokens_ - first, "tokens [{}, +{}) of {} in {}", first, count, tokens_,
               path().string());
  const uint64_t offset = tokens_offset_ + first * token_bytes_;
  if (token_bytes_ == 4) return file()->read(offset, out, count * 4);
  // Narrow tokens are read into the end of the output and widened from the front, where no write overtakes a read.
  char* const narrow = reinterpret_cast<char*>(out) + count * (4 - token_bytes_);
  file()->read(offset, narrow, count * token_bytes_);
  if (token_bytes_ == 2)
    widen<uint16_t>(narrow, count, out);
  else
    widen<uint8_t>(narrow, count, out);
}

void TokenFile::read_masks(uint64_t first, uint64_t count, uint8_t* out) const {
  STRATA_CHECK(first <= tokens_ && count <= tokens_ - first, "masks [{}, +{}) of {} in {}", first, count, tokens_,
               path().string());
  if (!has_masks()) {
    std::fill(out, out + count, uint8_t{1});
    return;
  }
  if (count == 0) return;
  const uint64_t first_byte = first / 8, end_byte = (first + count + 7) / 8;
  std::vector<uint8_t> bits(end_byte - first_byte);
  file()->read(masks_offset_ + first_byte, bits.data(), bits.size());
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t bit = first + i - first_byte * 8;
    out[i] = (bits[bit / 8] >> (bit % 8)) & 1;
  }
}

TokenWidths TokenFile::check_tokens(int64_t vocab_size, const OnRead& on_read) const {
  STRATA_CHECK(vocab_size >= 0, "vocab_size {}", vocab_size);
  const auto limit = static_cast<uint64_t>(vocab_size);
  const bool all_inside = vocab_size == 0 || (token_bytes_ < 4 && limit >> (8 * token_bytes_) != 0);
  TokenWidths widths(token_bytes_, vocab_size);
  std::vector<uint32_t> piece(std::min(kPieceBytes, tokens_ * token_bytes_ + 3) / 4 + 1);
  const uint64_t per_piece = kPieceBytes / token_bytes_;
  for (uint64_t done = 0; done < tokens_ && !(all_inside && widths.settled()); done += per_piece) {
    const uint64_t count = std::min(per_piece, tokens_ - done), offset = tokens_offset_ + done * token_bytes_;
    file()->read(offset, piece.data(), count * token_bytes_);
    file()->drop_cached(offset, count * token_bytes_);
    // A negative int32 token is a large one as uint32, so one comparison finds both.
    const auto look = [&](const auto* values) {
      widths.add(values, count);
      return all_inside ? count : first_outside(values, count, limit);
    };
    const uint64_t bad = token_bytes_ == 1   ? look(reinterpret_cast<const uint8_t*>(piece.data()))
                         : token_bytes_ == 2 ? look(reinterpret_cast<const uint16_t*>(piece.data()))
                                             : look(piece.data());
    if (bad != count) {
      int32_t stored = 0;
      read(done + bad, 1, &stored);
      throw outside_error(done + bad, stored, vocab_size, remedy_for_outside(vocab_size));
    }
    if (on_read) on_read(count * token_bytes_);
  }
  widths.require_right(path());
  return widths;
}

Error TokenFile::outside_error(uint64_t index, int32_t stored, int64_t vocab_size, const std::string& remedy) const {
  const int64_t value = signed_tokens() ? stored : static_cast<int64_t>(static_cast<uint32_t>(stored));
  return Error(ErrorCode::invalid_data,
               fmt::format("token {} has the value {}, which is not in the model's vocabulary of {}", index, value, vocab_size),
               fmt::format("{}, offset {}", path().string(), tokens_offset_ + index * token_bytes_), remedy);
}

std::string TokenFile::remedy_for_outside(int64_t vocab_size) const {
  const std::string plain = "tokenize with this model's tokenizer, or check data.format";
  if (token_bytes_ != 4) return plain;
  std::vector<uint16_t> halves(2 * std::min<uint64_t>(tokens_, 1 << 16));
  file()->read(tokens_offset_, halves.data(), halves.size() * sizeof(uint16_t));
  const bool fit = std::all_of(halves.begin(), halves.end(), [vocab_size](uint16_t half) { return half < vocab_size; });
  if (!fit) return plain;
  return "they look like 16-bit tokens read as 32-bit ones, as every half of the first is in the vocabulary: set data.format to raw16 "
         "for a file without a header; otherwise tokenize with this model's tokenizer";
}

TokenDataset::TokenDataset(TokenDatasetOptions options) : options_(std::move(options)) {
  STRATA_CHECK(options_.sequence_length > 0, "sequence_length {}", options_.sequence_length);
  if (options_.files.empty()) {
    throw Error(ErrorCode::invalid_configuration, "no token files are given", "/data/train", "name at least one file");
  }
  first_sample_.push_back(0);
  const auto length = static_cast<uint64_t>(options_.sequence_length);
  uint64_t longest = 0;
  for (const std::filesystem::path& path : options_.files) {
    const TokenFile& file = files_.emplace_back(path, options_.format);
    const uint64_t predicted = file.tokens() - 1;
    first_sample_.push_back(first_sample_.back() + predicted / length + (options_.short_windows && predicted % length != 0));
    longest = std::max(longest, file.tokens());
    if (options_.files.size() > kFilesHeldOpen) files_.back().release();
  }
  if (samples() == 0) {
    throw Error(
        ErrorCode::invalid_data,
        fmt::format("no file is long enough for one sample: a sequence of {} needs {} tokens, the longest file has {}",
                    options_.sequence_length, options_.short_windows ? 2 : options_.sequence_length + 1, longest),
        options_.files.front().string(), "use more data or a smaller data.sequence_length");
  }
  if (!options_.model_directory.empty()) check_against_model();
  if (options_.check_tokens) check_all_tokens();
}

void TokenDataset::check_against_model() const {
  const std::optional<TokenizerIdentity> tokenizer = tokenizer_identity(options_.model_directory);
  const bool stated = options_.format == DataFormat::text;
  for (const TokenFile& file : files_) {
    if (file.format() == DataFormat::text && (options_.vocab_size > 256 || (tokenizer && (options_.vocab_size != 256 || !stated)))) {
      const std::string has = tokenizer ? fmt::format("a tokenizer ({})", shown_text(tokenizer->files.front())) : std::string();
      throw Error(ErrorCode::invalid_configuration,
                  fmt::format("the file would be read as bytes, each a token, but the model in {} has {}{}a vocabulary of {}",
                              shown_text(options_.model_directory.string()), has, has.empty() ? "" : " and ", options_.vocab_size),
                  file.path().string(),
                  options_.vocab_size == 256
                      ? "to train on bytes all the same, set data.format to text; otherwise tokenize the text first (docs/data.md)"
                      : "tokenize the text with the model's tokenizer first (docs/data.md says how) and name the token file; bytes are for "
                        "a model with a vocabulary of 256, with data.format set to text");
    }
    if (const auto meta = read_token_meta(file.path())) {
      check_meta_of_file(*meta, file);
      check_meta_of_model(*meta, file, options_.model_directory, options_.vocab_size, tokenizer);
    }
  }
}

void TokenDataset::check_all_tokens() const {
  uint64_t done = 0, total = 0;
  for (const TokenFile& file : files_) total += file.tokens() * file.token_bytes();
  const OnRead on_read = [&](uint64_t bytes) {
    if (options_.on_progress) options_.on_progress(done += bytes, total);
  };
  // Files of one width are also looked at together, as each may be too short to judge.
  std::vector<TokenWidths> together;
  for (const uint32_t bytes : {1u, 2u, 4u}) together.emplace_back(bytes, options_.vocab_size);
  for (const TokenFile& file : files_) {
    const TokenWidths widths = file.check_tokens(options_.vocab_size, on_read);
    for (TokenWidths& all : together) all.add(widths);
  }
  for (const TokenWidths& all : together) all.require_right(files_.front().path());
}

uint64_t TokenDataset::tokens() const {
  uint64_t sum = 0;
  for (const TokenFile& file : files_) sum += file.tokens();
  return sum;
}

void TokenDataset::sample(uint64_t index, int32_t* tokens, int32_t* labels) const {
  const uint64_t epoch = index / samples();
  sample_at(KeyedPermutation(samples(), options_.seed, epoch).at(index % samples()), tokens, labels);
}

void TokenDataset::sample_at(uint64_t place, int32_t* tokens, int32_t* labels) const {
  STRATA_CHECK(place < samples(), "sample {} of {}", place, samples());
  const auto after = std::upper_bound(first_sample_.begin(), first_sample_.end(), place);
  const auto which = static_cast<size_t>(after - first_sample_.begin()) - 1;
  const TokenFile& file = files_[which];
  const auto length = static_cast<uint64_t>(options_.sequence_length);
  const uint64_t first = (place - first_sample_[which]) * length;
  const uint64_t there = std::min(length, file.tokens() - 1 - first);  // less in a short window
  // One read serves both: the labels are the tokens one place on.
  std::vector<int32_t> window(there + 1);
  file.read(first, there + 1, window.data());
  // Whatever was checked at start: a token beyond the vocabulary would be read as a place in memory.
  const auto limit = static_cast<uint64_t>(options_.vocab_size);
  const auto outside =
      std::find_if(window.begin(), window.end(), [limit](int32_t token) { return static_cast<uint32_t>(token) >= limit; });
  if (outside != window.end()) {
    const Error error = file.outside_error(first + static_cast<uint64_t>(outside - window.begin()), *outside, options_.vocab_size, {});
    throw Error(ErrorCode::data_corruption, error.message() + ": the file was changed after it was checked", error.where(),
                "put the file back as it was when the run began; the same command then continues");
  }
  std::copy(window.begin(), window.end() - 1, tokens);
  std::copy(window.begin() + 1, window.end(), labels);
  std::fill(tokens + there, tokens + length, 0);
  std::fill(labels + there, labels + length, kIgnoredLabel);
  if (!file.has_masks()) return;
  std::vector<uint8_t> counts(there);
  file.read_masks(first + 1, there, counts.data());
  for (uint64_t i = 0; i < there; ++i) {
    if (counts[i] == 0) labels[i] = kIgnoredLabel;
  }
}

}  // namespace strata
