#include "core/rng.hpp"

#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

namespace strata {
namespace {

// The known-answer vectors published with Random123 (kat_vectors, philox4x32 10).
TEST(Philox, AgreesWithThePublishedVectors) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(CounterRng, SeedStreamAndCounterAllMatter) {
  std::set<uint64_t> seen;
  for (const uint64_t seed : {0ull, 1ull, 1ull << 32, 1ull << 63}) {
    for (const uint64_t stream : {0ull, 1ull, 1ull << 32, 1ull << 63}) {
      for (const uint64_t counter : {0ull, 1ull, 1ull << 32, 1ull << 63})
        seen.insert(CounterRng(seed, stream).bits(counter));
    }
  }
  EXPECT_EQ(seen.size(), 64u);
}

// Quantiles from Python's statistics.NormalDist().inv_cdf.
TEST(CounterRng, NormalQuantilesAreRightInTheMiddleAndInTheTails) {
  const std::vector<std::pair<uint32_t, double>> quantiles = {
      {0x00000000u, -6.337957755},  {0x00000001u, -6.166429518},     {0x00000064u, -5.463062554},
      {0x00bc614eu, -2.76176952},   {0x0f000000u, -1.566688585},     {0x13333333u, -1.43953147},
      {0x40000000u, -0.6744897498}, {0x7fffffffu, -2.918099373e-10}, {0x80000000u, 2.918099373e-10},
      {0xc0000001u, 0.6744897513},  {0xecccccceu, 1.439531474},      {0xfffffff0u, 5.785777965},
      {0xffffffffu, 6.337957755}};
  for (const auto& [word, quantile] : quantiles)
    EXPECT_NEAR(normal_from_word(word), quantile, 1e-6 * (1 + std::abs(quantile))) << word;
}

TEST(CounterRng, MomentsAreThoseOfTheDistributions) {
  const CounterRng rng(7, 3);
  constexpr int kDraws = 200'000;
  double uniform_sum = 0, sum = 0, squares = 0, fourth = 0, cross = 0;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double u = rng.uniform(i);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    uniform_sum += u;
  }
  for (uint64_t i = 0; i < kDraws / 4; ++i) {
    const auto four = rng.normals(i);
    for (const double z : four) {
      sum += z;
      squares += z * z;
      fourth += z * z * z * z;
    }
    cross += four[0] * four[1] + four[1] * four[2];
  }
  EXPECT_NEAR(uniform_sum / kDraws, 0.5, 0.004);
  EXPECT_NEAR(sum / kDraws, 0.0, 0.01);
  EXPECT_NEAR(squares / kDraws, 1.0, 0.02);
  EXPECT_NEAR(fourth / kDraws, 3.0, 0.15);
  EXPECT_NEAR(cross / kDraws, 0.0, 0.01);
}

TEST(KeyedPermutation, IsAPermutationForEverySmallSize) {
  for (uint64_t size = 1; size <= 300; ++size) {
    const KeyedPermutation permutation(size, 42, size);
    std::vector<bool> seen(size);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t place = permutation.at(i);
      ASSERT_LT(place, size);
      ASSERT_FALSE(seen[place]) << size << " " << i;
      seen[place] = true;
    }
  }
}

TEST(KeyedPermutation, DependsOnTheKeyAndIsReproducible) {
  const KeyedPermutation a(1000, 1, 0), again(1000, 1, 0), other_seed(1000, 2, 0), other_stream(1000, 1, 1);
  int same_seed = 0, same_stream = 0, fixed = 0, neighbours = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(a.at(i), again.at(i));
    same_seed += a.at(i) == other_seed.at(i);
    same_stream += a.at(i) == other_stream.at(i);
    fixed += a.at(i) == i;
    neighbours += i > 0 && a.at(i) == a.at(i - 1) + 1;
  }
  // About one agreement is expected of each; ten has a probability near 1e-7.
  EXPECT_LT(same_seed, 10);
  EXPECT_LT(same_stream, 10);
  EXPECT_LT(fixed, 10);
  EXPECT_LT(neighbours, 10);
}

TEST(KeyedPermutation, WorksAtTheEndsOf64Bits) {
  for (const uint64_t size : {UINT64_MAX, (uint64_t{1} << 63) + 1, uint64_t{1} << 32, (uint64_t{1} << 32) + 1}) {
    const KeyedPermutation permutation(size, 5, 5);
    std::set<uint64_t> places;
    for (uint64_t i = 0; i < 1000; ++i) {
      places.insert(permutation.at(i));
      places.insert(permutation.at(size - 1 - i));
    }
    EXPECT_EQ(places.size(), 2000u);
    EXPECT_LT(*places.rbegin(), size);
    EXPECT_GT(*places.rbegin(), size / 2) << "the values spread over the whole range";
  }
}

}  // namespace
}  // namespace strata
