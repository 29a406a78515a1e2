// Random numbers that are functions of (seed, stream, counter): the same on every machine, in any order, from any
// thread.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace strata {

/// Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xd2511f53} * counter[0];
    const uint64_t product1 = uint64_t{0xcd9e8d57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key = {key[0] + 0x9e3779b9u, key[1] + 0xbb67ae85u};
  }
  return counter;
}

/// The standard normal quantile at (word + 1/2) / 2^32, to 7 digits: PPND7 of Wichura, "The percentage points of the
/// normal distribution", Applied Statistics 37 (1988), algorithm AS 241. Only the tails (15%) call the C library.
inline double normal_from_word(uint32_t word) {
  const double p = (static_cast<double>(word) + 0.5) * 0x1p-32;
  const double q = p - 0.5;
  if (std::abs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * (((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179) /
           (((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0);
  }
  double r = std::sqrt(-std::log(q < 0 ? p : 1.0 - p));
  double quantile = 0;
  if (r <= 5.0) {
    r -= 1.6;
    quantile = (((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777) /
               ((0.12021132975 * r + 0.73700164250) * r + 1.0);
  } else {
    r -= 5.0;
    quantile = (((0.017337203997 * r + 0.42868294337) * r + 3.0812263860) * r + 6.6579051150) /
               ((0.012258202635 * r + 0.24197894225) * r + 1.0);
  }
  return q < 0 ? -quantile : quantile;
}

/// An independent sequence of random numbers for each (seed, stream), addressed by a 64-bit counter. Copyable,
/// stateless.
class CounterRng {
 public:
  CounterRng(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}

  /// The four 32-bit words at a counter.
  std::array<uint32_t, 4> words(uint64_t counter) const {
    return philox4x32({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
                       static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)},
                      {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
  }
  uint64_t bits(uint64_t counter) const {
    const auto word = words(counter);
    return word[0] | static_cast<uint64_t>(word[1]) << 32;
  }
  /// Uniform in [0, 1), a multiple of 2^-53.
  double uniform(uint64_t counter) const { return static_cast<double>(bits(counter) >> 11) * 0x1p-53; }
  /// Four standard normals, one from each word.
  std::array<double, 4> normals(uint64_t counter) const {
    const auto word = words(counter);
    return {normal_from_word(word[0]), normal_from_word(word[1]), normal_from_word(word[2]), normal_from_word(word[3])};
  }

 private:
  uint64_t seed_, stream_;
};

/// A permutation of [0, size) that is a function of (seed, stream): at(i) is computed in O(1) without a table, for any
/// 64-bit size. A balanced Feistel network over the next even power of two; values outside of [0, size) are walked on
/// until they fall inside.
class KeyedPermutation {
 public:
  KeyedPermutation(uint64_t size, uint64_t seed, uint64_t stream) : size_(size), rng_(seed, stream) {
    while (half_bits_ < 32 && (size >> (2 * half_bits_)) != 0) ++half_bits_;
    mask_ = half_bits_ == 32 ? 0xffffffffu : (1u << half_bits_) - 1;
  }

  uint64_t size() const { return size_; }

  /// The place of `index`, which must be less than size().
  uint64_t at(uint64_t index) const {
    do index = encrypt(index);
    while (index >= size_);
    return index;
  }

 private:
  static constexpr uint64_t kRounds = 6;

  uint64_t encrypt(uint64_t value) const {
    uint32_t left = static_cast<uint32_t>(value >> half_bits_) & mask_, right = static_cast<uint32_t>(value) & mask_;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint32_t next = left ^ (rng_.words(round << 32 | right)[0] & mask_);
      left = right;
      right = next;
    }
    return static_cast<uint64_t>(left) << half_bits_ | right;
  }

  uint64_t size_;
  CounterRng rng_;
  int half_bits_ = 1;
  uint32_t mask_ = 0;
};

}  // namespace strata
