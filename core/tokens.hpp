// Token files of every supported format, and the order in which training reads their samples.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/config.hpp"
#include "core/content_hash.hpp"
#include "core/file.hpp"
#include "core/rng.hpp"
#include "core/token_widths.hpp"

namespace strata {

/// The label of a token that does not count.
inline constexpr int32_t kIgnoredLabel = -100;

/// What a file is by its magic (llmc, bintok) or its extension (text: .txt, .text, .md), if by either. Throws io.
std::optional<DataFormat> recognized_token_format(const ReadOnlyFile& file);

/// One file of tokens. Thread-safe for reading.
///   llmc    1024-byte header of little-endian int32: magic 20240520, version 1, count, then uint16 tokens; or
///   20240801, 7, uint32.
///           A file of more than 2^32 tokens has the count's low 32 bits in its header; the file's size tells the rest.
///   bintok  1024-byte header: "BIN.TOK\n", then int32 version (1 or 2), bytes per token (4), count, and from version 2
///   on the
///           vocabulary and whether masks follow; int32 tokens; a bit per token, least significant first, set if the
///           token counts.
///   raw16, raw32  uint16 or uint32 tokens, nothing else.
///   text    every byte is a token, vocabulary 256.
class TokenFile {
 public:
  /// Opens a file and checks its header against its size. `automatic` takes the recognized format. Throws invalid_data
  /// (not of the format, shorter or longer than stated, empty) or io.
  TokenFile(const std::filesystem::path& path, DataFormat format);

  const std::filesystem::path& path() const { return path_; }
  DataFormat format() const { return format_; }  // never automatic
  uint64_t tokens() const { return tokens_; }
  uint32_t token_bytes() const { return token_bytes_; }
  bool has_masks() const { return masks_offset_ != 0; }
  /// Whether a stored token is an int32; it is unsigned in every format but one.
  bool signed_tokens() const { return format_ == DataFormat::bintok; }
  /// The vocabulary that the header states.
  std::optional<int64_t> stated_vocab_size() const { return vocab_size_; }

  /// Fills out[0, count) with tokens from `first` on; blocks. Throws invalid_data if the file has become shorter, io.
  void read(uint64_t first, uint64_t count, int32_t* out) const;
  /// Fills out[0, count) with 1 for tokens that count and 0 for masked ones.
  void read_masks(uint64_t first, uint64_t count, uint8_t* out) const;
  /// Reads the file once, as far as needed, and tells `on_read` (core/content_hash.hpp) what it read. Throws invalid_data that names
  /// the first token outside of [0, vocab_size), its index and offset, or says that the tokens look like ones of another width.
  /// With `vocab_size` 0, unknown, only the width is looked at. Returns what was seen, for files that are too short each.
  TokenWidths check_tokens(int64_t vocab_size, const OnRead& on_read = {}) const;
  /// The error for a token outside of the vocabulary: `index` in the file, `stored` as read() gives it.
  Error outside_error(uint64_t index, int32_t stored, int64_t vocab_size, const std::string& remedy) const;
  /// Holds the file open no longer: each read then opens it. For sets of more files than a process may have open.
  void release();

 private:
  void open_llmc();
  void open_bintok();
  void open_raw(uint32_t token_bytes);
  std::string remedy_for_outside(int64_t vocab_size) const;
  void check_size(uint64_t expected_bytes) const;

  /// The file that is held open, or the file opened again. Throws io, invalid_data when its size is another now.
  std::shared_ptr<const ReadOnlyFile> file() const;

  std::filesystem::path path_;
  std::shared_ptr<const ReadOnlyFile> file_;  // null once released
  uint64_t size_ = 0;
  DataFormat format_;
  uint64_t tokens_ = 0;
  uint64_t tokens_offset_ = 0, masks_offset_ = 0;  // bytes
  uint32_t token_bytes_ = 0;
  std::optional<int64_t> vocab_size_;
};

/// A dataset of more files than this holds none of them open.
inline constexpr size_t kFilesHeldOpen = 256;

struct TokenDatasetOptions {
  std::vector<std::filesystem::path> files;
  DataFormat format = DataFormat::automatic;
  int64_t sequence_length = 0;
  uint64_t seed = 0;
  int64_t vocab_size = 0;
  bool short_windows = false;  // what is left of each file is a sample, too, filled up with labels of -100
  bool check_tokens = true;  // read everything once and refuse tokens outside of the vocabulary or of another width
  /// Where the model's tokenizer is, if anywhere: text as bytes and files with a description (core/token_meta.hpp) are then checked
  /// against it. Empty: not checked.
  std::filesystem::path model_directory = {};
  /// While the files are checked, in bytes. What it throws ends that.
  std::function<void(uint64_t done, uint64_t total)> on_progress = {};
};

/// The samples of a set of files: non-overlapping windows of sequence_length tokens, each with the token after it.
/// Every epoch visits each sample once, in an order that depends on seed, epoch and the number of samples alone.
/// Thread-safe for reading.
class TokenDataset {
 public:
  /// Throws invalid_data (see TokenFile and TokenMeta; files too short for a single sample), invalid_configuration (text as bytes for a
  /// model that has a tokenizer, unless `format` says text and the vocabulary is 256, or for a vocabulary of more) or io.
  explicit TokenDataset(TokenDatasetOptions options);

  const std::vector<TokenFile>& files() const { return files_; }
  /// Samples of one epoch.
  uint64_t samples() const { return first_sample_.back(); }
  uint64_t tokens() const;

  /// The `index`-th sample in training order, counted over all epochs from 0. Fills tokens[0, sequence_length) and
  /// labels[0, sequence_length): the token that follows each, or -100 if that token is masked. Blocks on the disk. Every token is
  /// looked at again: throws data_corruption if the file now holds one outside of the vocabulary, invalid_data if it became shorter.
  void sample(uint64_t index, int32_t* tokens, int32_t* labels) const;
  /// The same for a sample by its place in the files.
  void sample_at(uint64_t place, int32_t* tokens, int32_t* labels) const;

 private:
  void check_against_model() const;
  void check_all_tokens() const;

  TokenDatasetOptions options_;
  std::vector<TokenFile> files_;
  std::vector<uint64_t> first_sample_;  // of each file, then their total
};

}  // namespace strata
