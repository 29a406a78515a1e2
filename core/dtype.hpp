// The floating-point formats that state and activations are kept in, and the exact conversions between them.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace strata {

enum class DType : uint8_t { f32, bf16, f16 };

constexpr uint64_t size_bytes(DType dtype) { return dtype == DType::f32 ? 4 : 2; }
constexpr std::string_view to_string(DType dtype) {
  return dtype == DType::f32 ? "fp32" : dtype == DType::bf16 ? "bf16" : "fp16";
}

/// fp32 to bf16, ties away from zero (add 0x8000 to the bits, truncate); NaN stays a quiet NaN.
/// This rule, unlike round-to-nearest-even, can be undone from the low 16 bits: see split_master.
inline uint16_t bf16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x8000u) >> 16);
}

inline float float_from_bf16(uint16_t value) { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16); }

/// fp32 to IEEE binary16, round to nearest even, overflow to infinity, subnormals kept.
inline uint16_t f16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to 65536 or more
  if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-24, found by an exact addition
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

inline float float_from_f16(uint16_t value) {
  const uint32_t sign = static_cast<uint32_t>(value & 0x8000u) << 16;
  const uint32_t magnitude = value & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude < 0x0400u) {
    const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(subnormal));
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
}

/// A fp32 master weight as its bf16 rounding and the 16 bits that the rounding dropped. Lossless for every value but NaN.
struct SplitMaster {
  uint16_t upper;      // the bf16 parameter that the forward pass reads
  uint16_t remainder;  // the low half of the fp32 bits
};

inline SplitMaster split_master(float value) {
  return {bf16_from_float(value), static_cast<uint16_t>(std::bit_cast<uint32_t>(value))};
}

inline float join_master(SplitMaster split) {
  // A remainder of 0x8000 or more means that the upper half was rounded up by one unit.
  const uint32_t carried = static_cast<uint32_t>(split.upper) << 16;
  return std::bit_cast<float>((carried - (split.remainder >= 0x8000u ? 0x10000u : 0u)) | split.remainder);
}

inline uint16_t half_from_float(DType dtype, float value) {
  return dtype == DType::bf16 ? bf16_from_float(value) : f16_from_float(value);
}
inline float float_from_half(DType dtype, uint16_t value) {
  return dtype == DType::bf16 ? float_from_bf16(value) : float_from_f16(value);
}

}  // namespace strata
