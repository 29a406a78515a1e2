#include "core/init_weights.hpp"

#include <xxhash.h>

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "core/rng.hpp"

namespace strata {
namespace {

enum class Start { zeros, ones, normal };

Start start_of(TensorRole role) {
  switch (role) {
    case TensorRole::attention_norm_weight:
    case TensorRole::mlp_norm_weight:
    case TensorRole::final_norm_weight:
    case TensorRole::q_norm_weight:
    case TensorRole::k_norm_weight: return Start::ones;
    case TensorRole::attention_norm_bias:
    case TensorRole::mlp_norm_bias:
    case TensorRole::final_norm_bias:
    case TensorRole::qkv_bias:
    case TensorRole::q_bias:
    case TensorRole::k_bias:
    case TensorRole::v_bias:
    case TensorRole::attention_output_bias:
    case TensorRole::up_bias:
    case TensorRole::gate_bias:
    case TensorRole::down_bias: return Start::zeros;
    case TensorRole::token_embedding:
    case TensorRole::position_embedding:
    case TensorRole::qkv_weight:
    case TensorRole::q_weight:
    case TensorRole::k_weight:
    case TensorRole::v_weight:
    case TensorRole::attention_output_weight:
    case TensorRole::gate_weight:
    case TensorRole::up_weight:
    case TensorRole::down_weight:
    case TensorRole::head_weight: return Start::normal;
  }
  STRATA_CHECK(false, "role {}", static_cast<int>(role));
  return Start::zeros;
}

/// Elements [first, first + count) of a tensor's normal draws; four share a counter.
void fill_normal(const CounterRng& rng, double deviation, uint64_t first, uint64_t count, float* out) {
  for (uint64_t i = first; i < first + count;) {
    const auto four = rng.normals(i / 4);
    for (uint64_t k = i % 4; k < 4 && i < first + count; ++k, ++i)
      out[i - first] = static_cast<float>(deviation * four[k]);
  }
}

}  // namespace

void init_weights(const ModelDescription& model, const UnitLayout& unit, Range range, uint64_t seed, float* out) {
  STRATA_CHECK(range.first <= unit.padded_elements && range.count <= unit.padded_elements - range.first,
               "[{}, +{}) of {} with {}", range.first, range.count, unit.name, unit.padded_elements);
  std::fill(out, out + range.count, 0.0f);
  const uint64_t end = range.first + range.count;
  for (const TensorLayout& tensor : unit.tensors) {
    const uint64_t from = std::max(range.first, tensor.offset), to = std::min(end, tensor.offset + tensor.elements);
    if (from >= to) continue;
    float* const place = out + (from - range.first);
    const Start start = start_of(tensor.role);
    if (start == Start::ones) std::fill(place, place + (to - from), 1.0f);
    if (start != Start::normal) continue;
    const bool residual = model.family == Family::gpt2 && (tensor.role == TensorRole::attention_output_weight ||
                                                           tensor.role == TensorRole::down_weight);
    const double deviation =
        model.initializer_range / (residual ? std::sqrt(2.0 * static_cast<double>(model.layers)) : 1.0);
    const CounterRng rng(seed, XXH3_64bits(tensor.name.data(), tensor.name.size()));
    fill_normal(rng, deviation, from - tensor.offset, to - from, place);
  }
}

}  // namespace strata
