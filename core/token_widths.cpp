#include "core/token_widths.hpp"

#include <fmt/format.h>

#include <bit>

#include "core/error.hpp"

namespace strata {
namespace {

constexpr int64_t kAnyVocabulary = int64_t{1} << 20;

uint32_t upper_bits(uint32_t token_bytes, int64_t vocab_size) {
  if (token_bytes != 2) return 0;
  const uint64_t largest = static_cast<uint64_t>(vocab_size == 0 ? kAnyVocabulary : vocab_size) - 1;
  return static_cast<uint32_t>(std::bit_ceil((largest >> 16) + 1) - 1);
}

}  // namespace

TokenWidths::TokenWidths(uint32_t token_bytes, int64_t vocab_size)
    : token_bytes_(token_bytes), upper_(upper_bits(token_bytes, vocab_size)) {}

void TokenWidths::add(const TokenWidths& other) {
  if (other.token_bytes_ != token_bytes_) return;
  tokens_ += other.tokens_;
  for (size_t i = 0; i < bits_.size(); ++i) bits_[i] |= other.bits_[i];
}

std::optional<TokenWidths::Suspicion> TokenWidths::suspicion() const {
  if (tokens_ < kLeastTokens || small(1, 3) == small(0, 2)) return std::nullopt;
  const bool big_endian = small(0, 2);
  const bool four_times = token_bytes_ == 2 && (big_endian ? small(0, 1) && small(0, 2) : small(1, 2) && small(1, 3));
  const uint32_t bits = 8 * token_bytes_, written = bits * (four_times ? 4 : 2);
  const std::string zero = upper_ == 0 ? "0" : fmt::format("at most {}", upper_);
  Suspicion suspicion;
  suspicion.what = fmt::format("every second of the {} {}-bit tokens is {}: they look like {}{} read with the wrong width", tokens_, bits,
                               zero, big_endian ? "big-endian " : "",
                               token_bytes_ == 1 ? "UTF-16 text or 16-bit tokens" : fmt::format("{}-bit tokens", written));
  if (token_bytes_ == 1)
    suspicion.remedy = "for 16-bit tokens set data.format to raw16; text must be UTF-8 or another encoding of single bytes";
  else if (written == 32 && !big_endian)
    suspicion.remedy =
        "for a file without a header set data.format to raw32; otherwise write the tokens again with the width that its header states";
  else
    suspicion.remedy = fmt::format(
        "write the tokens again as little-endian uint32 (or uint16): numpy.fromfile(FILE, \"{}i{}\").astype(\"<u4\").tofile(OUT), and set "
        "data.format to raw32",
        big_endian ? ">" : "<", written / 8);
  return suspicion;
}

void TokenWidths::require_right(const std::filesystem::path& file) const {
  if (const auto found = suspicion()) throw Error(ErrorCode::invalid_data, found->what, file.string(), found->remedy);
}

}  // namespace strata
