// The combinations of formats that an update exists for, how their arrays are stepped through, and the update of one element.
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "core/error.hpp"
#include "cpu_adam/adam.hpp"

namespace strata::cpu_adam {

/// One combination, known at compile time.
template <MasterFormat kMasterFormat, DType kParameterDType, DType kGradientDType>
struct Formats {
  static constexpr MasterFormat kMaster = kMasterFormat;
  static constexpr DType kParameter = kParameterDType;
  static constexpr DType kGradient = kGradientDType;
  static constexpr bool kSplit = kMaster == MasterFormat::split;
};

/// Calls function(Formats<...>()) for the tile's combination. Throws Error{internal} for one that means nothing.
template <class Function>
void with_formats(const AdamTile& tile, Function&& function) {
  using enum MasterFormat;
  using enum DType;
  const auto is = [&](MasterFormat master, DType parameter_dtype, DType gradient_dtype) {
    return tile.master_format == master && tile.parameter_dtype == parameter_dtype && tile.gradient_dtype == gradient_dtype;
  };
  if (is(parameter, f32, f32)) return function(Formats<parameter, f32, f32>());
  if (is(split, bf16, bf16)) return function(Formats<split, bf16, bf16>());
  if (is(split, bf16, f32)) return function(Formats<split, bf16, f32>());
  if (is(fp32, bf16, bf16)) return function(Formats<fp32, bf16, bf16>());
  if (is(fp32, bf16, f16)) return function(Formats<fp32, bf16, f16>());
  if (is(fp32, bf16, f32)) return function(Formats<fp32, bf16, f32>());
  if (is(fp32, f16, bf16)) return function(Formats<fp32, f16, bf16>());
  if (is(fp32, f16, f16)) return function(Formats<fp32, f16, f16>());
  if (is(fp32, f16, f32)) return function(Formats<fp32, f16, f32>());
  STRATA_CHECK(false, "no AdamW update for master format {}, parameter {}, gradient {}",
               static_cast<int>(tile.master_format), to_string(tile.parameter_dtype), to_string(tile.gradient_dtype));
}

/// The tile's elements [first, first + count).
inline AdamTile slice(const AdamTile& tile, uint64_t first, uint64_t count) {
  const auto advance = [&](auto* array, uint64_t bytes_each) -> decltype(array) {
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(array)>>, const char, char>;
    return array ? reinterpret_cast<decltype(array)>(reinterpret_cast<Byte*>(array) + first * bytes_each) : nullptr;
  };
  AdamTile part = tile;
  part.parameter = advance(tile.parameter, size_bytes(tile.parameter_dtype));
  part.master = advance(tile.master, tile.master_format == MasterFormat::split ? 2 : 4);
  part.momentum = advance(tile.momentum, 4);
  part.variance = advance(tile.variance, 4);
  part.gradient = advance(tile.gradient, size_bytes(tile.gradient_dtype));
  part.elements = count;
  part.first_element += first;
  return part;
}

/// Calls update(tile) for pieces of the tile that decay, or do not, as one. Where a piece ends changes no bit.
template <class Update>
void for_decay_pieces(const AdamTile& tile, Update&& update) {
  uint64_t done = 0;
  const auto piece = [&](uint64_t end, bool decays) {
    if (end <= done) return;
    AdamTile part = slice(tile, done, end - done);
    part.undecayed = {};
    if (!decays) part.step.decay = 1.0f;
    update(part);
    done = end;
  };
  const uint64_t begin = tile.first_element;
  auto range = std::lower_bound(tile.undecayed.begin(), tile.undecayed.end(), begin,
                                [](const Range& one, uint64_t element) { return one.first + one.count <= element; });
  for (; range != tile.undecayed.end() && range->first < begin + tile.elements; ++range) {
    piece(range->first > begin ? range->first - begin : 0, /*decays=*/true);
    piece(std::min(range->first + range->count - begin, tile.elements), /*decays=*/false);
  }
  piece(tile.elements, /*decays=*/true);
}

/// The update of element i, in plain C++: the definition of the bits.
template <class F>
inline void update_element(const AdamTile& tile, uint64_t i) {
  const AdamStep& step = tile.step;
  float gradient;
  if constexpr (F::kGradient == DType::f32)
    gradient = static_cast<const float*>(tile.gradient)[i];
  else
    gradient = float_from_half(F::kGradient, static_cast<const uint16_t*>(tile.gradient)[i]);

  float p;
  if constexpr (F::kMaster == MasterFormat::parameter)
    p = static_cast<const float*>(tile.parameter)[i];
  else if constexpr (F::kSplit)
    p = join_master({static_cast<const uint16_t*>(tile.parameter)[i], static_cast<const uint16_t*>(tile.master)[i]});
  else
    p = static_cast<const float*>(tile.master)[i];

  const float g = gradient * step.gradient_scale;
  p = p * step.decay;
  const float m = tile.momentum[i] * step.beta1 + g * step.one_minus_beta1;
  const float v = tile.variance[i] * step.beta2 + (g * g) * step.one_minus_beta2;
  p = p - step.step_size * (m / (std::sqrt(v) * step.inverse_sqrt_correction2 + step.epsilon));
  tile.momentum[i] = m;
  tile.variance[i] = v;

  if constexpr (F::kMaster == MasterFormat::parameter) {
    static_cast<float*>(tile.parameter)[i] = p;
  } else if constexpr (F::kSplit) {
    const SplitMaster split = split_master(p);
    static_cast<uint16_t*>(tile.parameter)[i] = split.upper;
    static_cast<uint16_t*>(tile.master)[i] = split.remainder;
  } else {
    static_cast<float*>(tile.master)[i] = p;
    static_cast<uint16_t*>(tile.parameter)[i] = half_from_float(F::kParameter, p);
  }
}

}  // namespace strata::cpu_adam
