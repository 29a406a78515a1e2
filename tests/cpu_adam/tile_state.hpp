// A tile that owns its arrays, filled from a seed, for the tests of the update.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "cpu_adam/adam.hpp"

namespace strata::test {

struct FormatCase {
  MasterFormat master;
  DType parameter, gradient;
  std::string name() const {
    static constexpr const char* kMasters[] = {"parameter", "split", "master"};
    return std::string(kMasters[static_cast<int>(master)]) + "_" + std::string(to_string(parameter)) + "_gradient_" +
           std::string(to_string(gradient));
  }
  friend void PrintTo(const FormatCase& format, std::ostream* out) { *out << format.name(); }
};

inline const std::vector<FormatCase>& all_formats() {
  using enum DType;
  static const std::vector<FormatCase> formats = {
      {MasterFormat::parameter, f32, f32}, {MasterFormat::split, bf16, bf16}, {MasterFormat::split, bf16, f32},
      {MasterFormat::fp32, bf16, bf16},    {MasterFormat::fp32, bf16, f16},   {MasterFormat::fp32, bf16, f32},
      {MasterFormat::fp32, f16, bf16},     {MasterFormat::fp32, f16, f16},    {MasterFormat::fp32, f16, f32}};
  return formats;
}

/// The arrays of one tile. Guard bytes behind each array must keep their pattern.
class TileState {
 public:
  TileState(FormatCase format, uint64_t elements) : format_(format), elements_(elements) {
    parameter_ = array(size_bytes(format.parameter));
    master_ = array(format.master == MasterFormat::parameter ? 0 : format.master == MasterFormat::split ? 2 : 4);
    momentum_ = array(4);
    variance_ = array(4);
    gradient_ = array(size_bytes(format.gradient));
  }

  uint64_t elements() const { return elements_; }

  void set_master(uint64_t i, float value) {
    if (format_.master == MasterFormat::parameter) return put(parameter_, i, value);
    if (format_.master == MasterFormat::split) {
      const SplitMaster split = split_master(value);
      put(parameter_, i, split.upper);
      return put(master_, i, split.remainder);
    }
    put(master_, i, value);
    put(parameter_, i, half_from_float(format_.parameter, value));
  }
  float master(uint64_t i) const {
    if (format_.master == MasterFormat::parameter) return get<float>(parameter_, i);
    if (format_.master == MasterFormat::split) return join_master({get<uint16_t>(parameter_, i), get<uint16_t>(master_, i)});
    return get<float>(master_, i);
  }
  uint16_t half_parameter(uint64_t i) const { return get<uint16_t>(parameter_, i); }
  void set_gradient(uint64_t i, float value) {
    if (format_.gradient == DType::f32) return put(gradient_, i, value);
    put(gradient_, i, half_from_float(format_.gradient, value));
  }
  void set_gradient_bits(uint64_t i, uint16_t bits) { put(gradient_, i, bits); }
  float gradient(uint64_t i) const {
    if (format_.gradient == DType::f32) return get<float>(gradient_, i);
    return float_from_half(format_.gradient, get<uint16_t>(gradient_, i));
  }
  void set_momentum(uint64_t i, float value) { put(momentum_, i, value); }
  void set_variance(uint64_t i, float value) { put(variance_, i, value); }
  float momentum(uint64_t i) const { return get<float>(momentum_, i); }
  float variance(uint64_t i) const { return get<float>(variance_, i); }

  /// State as training meets it.
  void fill(uint64_t seed) {
    std::mt19937_64 generator(seed);
    std::normal_distribution<float> normal;
    for (uint64_t i = 0; i < elements_; ++i) {
      set_master(i, 0.1f * normal(generator));
      set_momentum(i, 1e-3f * normal(generator));
      const float root = 1e-3f * normal(generator);
      set_variance(i, root * root);
    }
    fill_gradient(seed + 1);
  }
  void fill_gradient(uint64_t seed) {
    std::mt19937_64 generator(seed);
    std::normal_distribution<float> normal;
    for (uint64_t i = 0; i < elements_; ++i) set_gradient(i, 1e-2f * normal(generator));
  }

  /// The tile, or elements [first, first + count) of it, which then may be aligned to nothing.
  AdamTile tile(const AdamStep& step) { return tile(step, 0, elements_); }
  AdamTile tile(const AdamStep& step, uint64_t first, uint64_t count) {
    AdamTile result;
    result.master_format = format_.master;
    result.parameter_dtype = format_.parameter;
    result.gradient_dtype = format_.gradient;
    result.parameter = at(parameter_, first);
    result.master = format_.master == MasterFormat::parameter ? nullptr : at(master_, first);
    result.momentum = reinterpret_cast<float*>(at(momentum_, first));
    result.variance = reinterpret_cast<float*>(at(variance_, first));
    result.gradient = at(gradient_, first);
    result.elements = count;
    result.step = step;
    return result;
  }

  /// Every bit of every array agrees, where one is a NaN only that both are (the payload depends on the processor's operand order).
  /// Guards are whole.
  friend testing::AssertionResult same_bits(const TileState& a, const TileState& b) {
    const auto same_float = [](float x, float y) {
      return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y) || (std::isnan(x) && std::isnan(y));
    };
    for (uint64_t i = 0; i < a.elements_; ++i) {
      const auto differ = [&](const char* what, auto x, auto y) {
        return testing::AssertionFailure() << a.format_.name() << ": " << what << " of element " << i << " of "
                                           << a.elements_ << " is " << std::hexfloat << x << " and " << y;
      };
      if (!same_float(a.master(i), b.master(i))) return differ("master", a.master(i), b.master(i));
      if (!same_float(a.momentum(i), b.momentum(i))) return differ("momentum", a.momentum(i), b.momentum(i));
      if (!same_float(a.variance(i), b.variance(i))) return differ("variance", a.variance(i), b.variance(i));
      if (a.format_.parameter == DType::f32 || std::isnan(a.master(i))) continue;
      if (a.half_parameter(i) != b.half_parameter(i)) return differ("parameter", a.half_parameter(i), b.half_parameter(i));
    }
    for (const TileState* state : {&a, &b})
      for (const Array* array : {&state->parameter_, &state->master_, &state->momentum_, &state->variance_, &state->gradient_})
        for (size_t byte = array->used; byte < array->bytes.size(); ++byte)
          if (array->bytes[byte] != kGuard) return testing::AssertionFailure() << "written past the end of an array";
    return testing::AssertionSuccess();
  }

 private:
  static constexpr uint8_t kGuard = 0xa5;
  struct Array {
    std::vector<uint8_t> bytes;
    size_t used = 0, each = 0;
  };
  Array array(size_t each) const {
    Array result{{}, elements_ * each, each};
    result.bytes.assign(result.used + 128, kGuard);
    std::fill_n(result.bytes.begin(), result.used, uint8_t{0});
    return result;
  }
  static uint8_t* at(Array& array, uint64_t i) { return array.bytes.data() + i * array.each; }
  template <class T>
  static T get(const Array& array, uint64_t i) {
    T value;
    std::memcpy(&value, array.bytes.data() + i * sizeof(T), sizeof(T));
    return value;
  }
  template <class T>
  static void put(Array& array, uint64_t i, T value) {
    std::memcpy(array.bytes.data() + i * sizeof(T), &value, sizeof(T));
  }

  FormatCase format_;
  uint64_t elements_;
  Array parameter_, master_, momentum_, variance_, gradient_;
};

}  // namespace strata::test
