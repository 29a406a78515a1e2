#include "core/dtype.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/rng.hpp"

namespace strata {
namespace {

uint32_t bits(float value) { return std::bit_cast<uint32_t>(value); }
float of(uint32_t value) { return std::bit_cast<float>(value); }

/// Values around every rounding border of both half formats, and random bits.
std::vector<float> interesting_values() {
  std::vector<float> values;
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (const uint32_t low : {0u, 1u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      values.push_back(of(high << 16 | low));
  }
  const CounterRng rng(1, 1);
  for (uint64_t i = 0; i < 100'000; ++i) values.push_back(of(static_cast<uint32_t>(rng.bits(i))));
  return values;
}

TEST(DType, SplitMastersJoinToTheSameBits) {
  for (const float value : interesting_values()) {
    if (std::isnan(value)) continue;
    const SplitMaster split = split_master(value);
    ASSERT_EQ(bits(join_master(split)), bits(value)) << std::hexfloat << value;
    ASSERT_EQ(split.upper, bf16_from_float(value));
  }
}

TEST(DType, Bf16RoundsToTheNearestWithTiesAwayFromZero) {
  for (const float value : interesting_values()) {
    const float rounded = float_from_bf16(bf16_from_float(value));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(rounded));
      continue;
    }
    const uint32_t low = bits(value) & 0xffffu, truncated = bits(value) & 0xffff0000u;
    ASSERT_EQ(bits(rounded), low >= 0x8000u ? truncated + 0x10000u : truncated) << std::hexfloat << value;
  }
}

/// binary16 by definition: the nearest of its values in double, ties to the even one.
uint16_t f16_by_definition(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::abs(static_cast<double>(value));
  if (magnitude == 0) return sign;
  if (magnitude >= 65520.0) return sign | 0x7c00;
  int exponent = 0;
  static_cast<void>(std::frexp(magnitude, &exponent));
  const double unit = std::ldexp(1.0, std::max(exponent - 11, -24));
  const auto steps = static_cast<uint32_t>(std::nearbyint(magnitude / unit));
  if (exponent - 11 <= -24) return static_cast<uint16_t>(sign | steps);
  return static_cast<uint16_t>(sign | ((static_cast<uint32_t>(exponent + 13) << 10) + steps));
}

TEST(DType, F16RoundsToTheNearestEven) {
  for (const float value : interesting_values()) {
    const uint16_t half = f16_from_float(value);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(float_from_f16(half)));
      continue;
    }
    ASSERT_EQ(half, f16_by_definition(value)) << std::hexfloat << value;
  }
}

TEST(DType, EveryHalfSurvivesTheWayToFp32AndBack) {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const auto value = static_cast<uint16_t>(half);
    const float as_f16 = float_from_f16(value), as_bf16 = float_from_bf16(value);
    ASSERT_TRUE(std::isnan(as_f16) || f16_from_float(as_f16) == value) << half;
    ASSERT_TRUE(std::isnan(as_bf16) || bf16_from_float(as_bf16) == value) << half;
  }
  EXPECT_EQ(float_from_f16(0x0001), 0x1p-24f);
  EXPECT_EQ(float_from_f16(0x7bff), 65504.0f);
  EXPECT_EQ(float_from_f16(0xfc00), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(float_from_half(DType::bf16, half_from_float(DType::bf16, 3.0f)), 3.0f);
  EXPECT_EQ(float_from_half(DType::f16, half_from_float(DType::f16, 3.0f)), 3.0f);
}

}  // namespace
}  // namespace strata
