// exp, the sigmoid and the normal distribution of the kernels, against double over the whole range of fp32.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "core/dtype.hpp"
#include "gpu/kernels/numbers-inl.hpp"

namespace strata::gpu::kernels {
namespace {

/// Every 997th bit pattern, both signs; what is not finite comes at the end.
template <class Check>
void for_many_floats(const Check& check) {
  for (uint32_t bits = 0; bits < 0x7f800000u; bits += 997) {
    check(std::bit_cast<float>(bits));
    check(std::bit_cast<float>(bits | 0x80000000u));
  }
}

/// The distance in units in the last place of the wanted number; subnormal steps below the normal range.
double ulps(float got, double want) {
  if (std::isinf(got) && want > std::numeric_limits<float>::max()) return 0;
  const int exponent = std::max(std::ilogb(std::max(std::abs(want), 0x1p-149)), -126);
  return std::abs(static_cast<double>(got) - want) / std::ldexp(1.0, exponent - 23);
}

TEST(LaneNumbers, ExpIsWithinOneUlpAndAHalf) {
  double worst = 0;
  float worst_at = 0;
  for_many_floats([&](float x) {
    const double error = ulps(exp(x), std::exp(static_cast<double>(x)));
    if (!(error <= worst)) worst = error, worst_at = x;
  });
  for (float x = -104; x < 89; x += 0.000123f) {
    const double error = ulps(exp(x), std::exp(static_cast<double>(x)));
    if (!(error <= worst)) worst = error, worst_at = x;
  }
  RecordProperty("worst_ulps", std::to_string(worst));
  EXPECT_LE(worst, 1.5) << "at " << worst_at;
}

TEST(LaneNumbers, ExpKnowsTheEndsOfTheRange) {
  EXPECT_EQ(exp(0.0f), 1.0f);
  EXPECT_EQ(exp(-0.0f), 1.0f);
  EXPECT_EQ(exp(INFINITY), INFINITY);
  EXPECT_EQ(exp(-INFINITY), 0.0f);
  EXPECT_TRUE(std::isnan(exp(NAN)));
  EXPECT_EQ(exp(89.0f), INFINITY);
  EXPECT_TRUE(std::isfinite(exp(88.72f)));
  EXPECT_EQ(exp(-105.0f), 0.0f);
  EXPECT_EQ(exp(-103.0f), 0x1p-149f);
  EXPECT_NEAR(exp(-100.0f) / 0x1p-149, std::exp(-100.0) / 0x1p-149, 1.0);
}

TEST(LaneNumbers, SigmoidAndItsComplementKeepTheirDigits) {
  double worst = 0;
  for_many_floats([&](float x) {
    const double e = std::exp(-std::abs(static_cast<double>(x)));
    const double small = e / (1 + e), large = 1 / (1 + e);
    const Sigmoid s = sigmoid(x);
    worst = std::max({worst, ulps(s.value, x < 0 ? small : large), ulps(s.complement, x < 0 ? large : small)});
  });
  EXPECT_LE(worst, 3.0);
  EXPECT_EQ(sigmoid(INFINITY).value, 1.0f);
  EXPECT_EQ(sigmoid(-INFINITY).value, 0.0f);
  EXPECT_TRUE(std::isnan(sigmoid(NAN).value));
}

TEST(LaneNumbers, NormalDistributionAndDensityMatchDouble) {
  double worst_center = 0, worst_tail = 0, worst_density = 0;
  for (float x = -13; x < 13; x += 0.00037f) {
    const double exact = x, distribution = 0.5 * std::erfc(-exact / std::sqrt(2.0));
    const double density = std::exp(-exact * exact / 2) / std::sqrt(2 * M_PI);
    const Normal n = normal(x);
    // Squaring x costs half an ulp of x^2 / 2 in the exponent.
    const double allowance = 1 + exact * exact / 4;
    (x > -2 ? worst_center : worst_tail) =
        std::max(x > -2 ? worst_center : worst_tail, ulps(n.distribution, distribution) / allowance);
    worst_density = std::max(worst_density, ulps(n.density, density) / allowance);
  }
  EXPECT_LE(worst_center, 5.0);
  EXPECT_LE(worst_tail, 4.0);
  EXPECT_LE(worst_density, 3.0);
  EXPECT_EQ(normal(0.0f).distribution, 0.5f);
  EXPECT_EQ(normal(INFINITY).distribution, 1.0f);
  EXPECT_EQ(normal(-INFINITY).distribution, 0.0f);
  EXPECT_TRUE(std::isnan(normal(NAN).distribution));
}

TEST(LaneNumbers, ConversionsHaveTheBitsOfCore) {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    ASSERT_EQ(bits_of(to_float(Bf16{half})), bits_of(float_from_bf16(half))) << bits;
    ASSERT_EQ(bits_of(to_float(F16{half})), bits_of(float_from_f16(half))) << bits;
  }
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 331) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(bits));
    ASSERT_EQ(from_float<Bf16>(value).bits, bf16_from_float(value)) << bits;
    ASSERT_EQ(from_float<F16>(value).bits, f16_from_float(value)) << bits;
  }
}

}  // namespace
}  // namespace strata::gpu::kernels
