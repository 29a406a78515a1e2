// The storage formats of activations, and exp and what is made of it, without branches so that loops over them vectorize.
#if defined(STRATA_GPU_KERNELS_NUMBERS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef STRATA_GPU_KERNELS_NUMBERS_INL
#undef STRATA_GPU_KERNELS_NUMBERS_INL
#else
#define STRATA_GPU_KERNELS_NUMBERS_INL
#endif

#include "gpu/kernels/region.hpp"

STRATA_KERNELS_BEFORE
namespace STRATA_KERNELS_NAMESPACE {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

STRATA_KERNEL_INLINE uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }
STRATA_KERNEL_INLINE float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

/// As condition ? a : b, but never with a branch, which the compiler would keep around arithmetic that may raise a floating-point
/// exception.
STRATA_KERNEL_INLINE uint32_t choose(bool condition, uint32_t a, uint32_t b) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (a & mask) | (b & ~mask);
}
STRATA_KERNEL_INLINE float choose(bool condition, float a, float b) { return float_of(choose(condition, bits_of(a), bits_of(b))); }
STRATA_KERNEL_INLINE float magnitude_of(float x) { return float_of(bits_of(x) & 0x7fffffffu); }
/// A NaN stays.
STRATA_KERNEL_INLINE float clamp(float x, float low, float high) {
  const float raised = choose(x < low, low, x);
  return choose(raised > high, high, raised);
}

// The same bits as core/dtype.hpp, with every branch turned into a choice between two values.
STRATA_KERNEL_INLINE float to_float(float value) { return value; }
STRATA_KERNEL_INLINE float to_float(Bf16 value) { return float_of(static_cast<uint32_t>(value.bits) << 16); }
STRATA_KERNEL_INLINE float to_float(F16 value) {
  const uint32_t magnitude = value.bits & 0x7fffu;
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t finite = bits_of(float_of(magnitude << 13) * 0x1p112f);  // moves the exponent's bias, exactly, subnormals too
  const uint32_t special = (magnitude << 13) | 0x7f800000u;
  return float_of(sign | choose(magnitude > 0x7bffu, special, finite));
}

template <class T>
STRATA_KERNEL_INLINE T from_float(float value);
template <>
STRATA_KERNEL_INLINE float from_float<float>(float value) {
  return value;
}
template <>
STRATA_KERNEL_INLINE Bf16 from_float<Bf16>(float value) {
  const uint32_t bits = bits_of(value);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const uint32_t rounded = bits + choose(nan, 0u, 0x8000u);
  return {static_cast<uint16_t>((rounded >> 16) | choose(nan, 0x40u, 0u))};
}
template <>
STRATA_KERNEL_INLINE F16 from_float<F16>(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x1ffu);
  const uint32_t finite = choose(magnitude < 0x38800000u, subnormal, normal);
  const uint32_t ordered = choose(magnitude > 0x477fefffu, 0x7c00u, finite);
  return {static_cast<uint16_t>(sign | choose(magnitude > 0x7f800000u, nan, ordered))};
}

/// What `value` becomes when it is stored.
template <class T>
STRATA_KERNEL_INLINE float rounded(float value) {
  return to_float(from_float<T>(value));
}

/// e^x to about 1 ulp, subnormal results, 0, infinity and NaN included.
/// x = n ln 2 + r with |r| <= ln 2 / 2; the polynomial is a minimax fit of (e^r - 1 - r) / r^2, relative error of e^r 8e-9.
STRATA_KERNEL_INLINE float exp(float x) {
  constexpr float kRound = 0x1.8p23f;  // adding it rounds to an integer, which then stands in the low bits
  constexpr float kLn2High = 0x1.62e4p-1f, kLn2Low = 0x1.7f7d1cp-20f;  // n * high is exact
  const float clamped = clamp(x, -105.0f, 89.0f);
  const float shifted = clamped * 0x1.715476p0f + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  float p = 0.00139015336f;
  p = p * r + 0.00836373985f;
  p = p * r + 0.0416668609f;
  p = p * r + 0.166665737f;
  p = p * r + 0.499999995f;
  p = (p * r * r + r) + 1.0f;
  // 2^n in two factors, because n may lie outside the exponents of a normal number.
  const int32_t exponent = static_cast<int32_t>(bits_of(shifted) - bits_of(kRound));
  const int32_t half = exponent >> 1;
  const float first = float_of(static_cast<uint32_t>(half + 127) << 23);
  const float second = float_of(static_cast<uint32_t>(exponent - half + 127) << 23);
  return p * first * second;
}

/// 1 / (1 + e^-x), and 1 minus it, which has digits of its own where the first is close to 1.
struct Sigmoid {
  float value;
  float complement;
};
STRATA_KERNEL_INLINE Sigmoid sigmoid(float x) {
  const float e = exp(-magnitude_of(x));  // at most 1, so nothing overflows
  const float larger = 1.0f / (1.0f + e);
  const float smaller = e * larger;
  return {choose(x < 0.0f, smaller, larger), choose(x < 0.0f, larger, smaller)};
}

/// The distribution function of the standard normal and its density.
struct Normal {
  float distribution;
  float density;
};
/// The lower tail is exp(-x^2/2) t P(t) with t = 1 / (1 + 0.3 |x|): a minimax fit of relative error 4e-9, so that
/// the tail keeps its digits where 1 + erf would lose them.
STRATA_KERNEL_INLINE Normal normal(float x) {
  const float a = magnitude_of(x);
  const float e = exp(-0.5f * a * a);
  const float t = 1.0f / (1.0f + 0.3f * a);
  float p = -0.0206234828f;
  p = p * t + 0.112435681f;
  p = p * t - 0.228213745f;
  p = p * t + 0.191784708f;
  p = p * t - 0.0794236189f;
  p = p * t + 0.0961568925f;
  p = p * t + 0.0783896317f;
  p = p * t + 0.110235428f;
  p = p * t + 0.119571814f;
  p = p * t + 0.11968669f;
  const float tail = e * (t * p);
  return {choose(x < 0.0f, tail, 1.0f - tail), e * 0.398942280f};
}

}  // namespace STRATA_KERNELS_NAMESPACE
STRATA_KERNELS_AFTER
#endif
