// Finds tokens that are read with another width than they were written with: then every second value is (nearly) always zero, training
// runs, and the loss looks better than it is.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace strata {

/// Watches the values of a token file, or of a set of files with tokens of one width, each from its first value on.
///
/// The rule: among at least kLeastTokens values, all at odd places are no more than the upper part of a token of twice the width can be,
/// and some at even places are more (little-endian); or the other way round (big-endian). The upper part is 0, except for 16-bit values
/// where the vocabulary needs more than 16 bits. A text in which every second token is of the first few of the vocabulary, for a thousand
/// tokens and without exception, is none that a tokenizer makes.
class TokenWidths {
 public:
  static constexpr uint64_t kLeastTokens = 1024;

  /// `vocab_size` 0: unknown, and taken for at most 2^20.
  TokenWidths(uint32_t token_bytes, int64_t vocab_size);

  /// The next values of the file. `count` is a multiple of 4 except at the file's end.
  template <typename Stored>
  void add(const Stored* values, uint64_t count) {
    tokens_ += count;
    if (settled()) return;
    uint32_t at0 = 0, at1 = 0, at2 = 0, at3 = 0;
    uint64_t i = 0;
    for (; i + 4 <= count; i += 4) {
      at0 |= static_cast<uint32_t>(values[i]);
      at1 |= static_cast<uint32_t>(values[i + 1]);
      at2 |= static_cast<uint32_t>(values[i + 2]);
      at3 |= static_cast<uint32_t>(values[i + 3]);
    }
    const std::array<uint32_t, 4> seen{at0, at1, at2, at3};
    for (size_t place = 0; place < 4; ++place) bits_[place] |= seen[place];
    for (; i < count; ++i) bits_[i % 4] |= static_cast<uint32_t>(values[i]);
  }
  /// What another file of the set showed. Files of another width are left out.
  void add(const TokenWidths& other);
  /// Whether no further value can make the values suspicious.
  bool settled() const { return !small(1, 3) && !small(0, 2); }

  struct Suspicion {
    std::string what, remedy;
  };
  std::optional<Suspicion> suspicion() const;
  /// Throws invalid_data if there is a suspicion.
  void require_right(const std::filesystem::path& file) const;

 private:
  bool small(int a, int b) const { return ((bits_[a] | bits_[b]) & ~upper_) == 0; }

  uint32_t token_bytes_;
  uint32_t upper_;  // all bits that the upper part of a wider token can have
  uint64_t tokens_ = 0;
  std::array<uint32_t, 4> bits_{};  // of all values at places 0, 1, 2, 3 modulo 4
};

}  // namespace strata
