// The formulas are those of transformers' modeling_rope_utils (PI: arXiv 2306.15595, NTK, YaRN: arXiv 2309.00071,
// LongRoPE: arXiv 2402.13753, Llama 3.1).
#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "core/error.hpp"
#include "core/model.hpp"

namespace strata {
namespace {

using std::numbers::pi;

std::vector<double> plain(double theta, int64_t head_dim) {
  std::vector<double> inverse(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < inverse.size(); ++i) {
    inverse[i] = 1.0 / std::pow(theta, static_cast<double>(2 * i) / static_cast<double>(head_dim));
  }
  return inverse;
}

/// Keeps the short waves, divides the long ones, and goes smoothly from one to the other in between.
void scale_llama3(const RopeConfig& rope, std::vector<double>& inverse) {
  const double original = static_cast<double>(rope.original_max_positions);
  for (double& frequency : inverse) {
    const double wavelength = 2 * pi / frequency;
    if (wavelength < original / rope.high_frequency_factor) continue;
    if (wavelength > original / rope.low_frequency_factor) {
      frequency /= rope.factor;
      continue;
    }
    const double smooth =
        (original / wavelength - rope.low_frequency_factor) / (rope.high_frequency_factor - rope.low_frequency_factor);
    frequency = (1 - smooth) * frequency / rope.factor + smooth * frequency;
  }
}

void scale_yarn(const RopeConfig& rope, int64_t head_dim, std::vector<double>& inverse) {
  const double dim = static_cast<double>(head_dim);
  // The dimension that turns `rotations` times over the original context.
  const auto dimension_of = [&](double rotations) {
    return dim * std::log(static_cast<double>(rope.original_max_positions) / (rotations * 2 * pi)) /
           (2 * std::log(rope.theta));
  };
  double low = dimension_of(rope.beta_fast), high = dimension_of(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < inverse.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    inverse[i] = inverse[i] / rope.factor * ramp + inverse[i] * (1 - ramp);
  }
}

}  // namespace

RopeFrequencies rope_frequencies(const ModelDescription& model, int64_t sequence_length) {
  const RopeConfig& rope = model.rope;
  STRATA_CHECK(model.head_dim > 0 && model.head_dim % 2 == 0, "head_dim {}", model.head_dim);
  RopeFrequencies result;
  double theta = rope.theta;
  if (rope.scaling == RopeConfig::Scaling::dynamic) {
    const double original = static_cast<double>(rope.original_max_positions);
    const double length = std::max(static_cast<double>(sequence_length), original);
    const double dim = static_cast<double>(model.head_dim);
    theta *= std::pow(rope.factor * length / original - (rope.factor - 1), dim / (dim - 2));
  }
  result.inverse_frequency = plain(theta, model.head_dim);
  switch (rope.scaling) {
    case RopeConfig::Scaling::none:
    case RopeConfig::Scaling::dynamic: break;
    case RopeConfig::Scaling::linear:
      for (double& frequency : result.inverse_frequency) frequency /= rope.factor;
      break;
    case RopeConfig::Scaling::llama3: scale_llama3(rope, result.inverse_frequency); break;
    case RopeConfig::Scaling::yarn:
      scale_yarn(rope, model.head_dim, result.inverse_frequency);
      result.attention_factor =
          rope.attention_factor.value_or(rope.factor <= 1 ? 1.0 : 0.1 * std::log(rope.factor) + 1.0);
      break;
    case RopeConfig::Scaling::longrope: {
      const std::vector<double>& divisors = sequence_length > rope.original_max_positions ? rope.long_factor : rope.short_factor;
      STRATA_CHECK(divisors.size() == result.inverse_frequency.size(), "{} divisors of {} frequencies", divisors.size(),
                   result.inverse_frequency.size());
      for (size_t i = 0; i < divisors.size(); ++i) result.inverse_frequency[i] /= divisors[i];
      result.attention_factor = rope.attention_factor.value_or(
          rope.factor <= 1 ? 1.0 : std::sqrt(1 + std::log(rope.factor) / std::log(static_cast<double>(rope.original_max_positions))));
      break;
    }
  }
  return result;
}

}  // namespace strata
