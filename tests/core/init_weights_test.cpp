#include "core/init_weights.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace strata {
namespace {

ModelDescription small(Family family) {
  ModelDescription model;
  model.family = family;
  model.vocab_size = 301;
  model.hidden_size = 48;
  model.layers = 8;
  model.heads = model.kv_heads = 4;
  model.head_dim = 12;
  model.intermediate_size = 96;
  model.max_positions = 40;
  model.qk_norm = model.qkv_bias = model.attention_output_bias = model.mlp_bias = true;
  return model;
}

std::vector<float> whole(const ModelDescription& model, const UnitLayout& unit, uint64_t seed) {
  std::vector<float> out(unit.padded_elements, -7.0f);
  init_weights(model, unit, {0, unit.padded_elements}, seed, out.data());
  return out;
}

double deviation_of(const std::vector<float>& values, const TensorLayout& tensor) {
  double squares = 0;
  for (uint64_t i = 0; i < tensor.elements; ++i) squares += std::pow(static_cast<double>(values[tensor.offset + i]), 2);
  return std::sqrt(squares / static_cast<double>(tensor.elements));
}

TEST(InitWeights, AnySplitGivesTheSameValues) {
  const ModelDescription model = small(Family::llama);
  const ModelLayout layout = make_layout(model);
  const UnitLayout& unit = layout.units[3];
  const std::vector<float> all = whole(model, unit, 11);
  for (const uint64_t piece : {1ull, 7ull, 4096ull, 5001ull}) {
    std::vector<float> out(unit.padded_elements, -7.0f);
    for (uint64_t first = 0; first < unit.padded_elements; first += piece) {
      init_weights(model, unit, {first, std::min(piece, unit.padded_elements - first)}, 11, out.data() + first);
    }
    EXPECT_EQ(out, all) << piece;
  }
}

TEST(InitWeights, SeedsTensorsAndLayersDiffer) {
  const ModelDescription model = small(Family::llama);
  const ModelLayout layout = make_layout(model);
  const auto a = whole(model, layout.units[1], 1);
  EXPECT_NE(a, whole(model, layout.units[1], 2));
  EXPECT_NE(a, whole(model, layout.units[2], 1));
  const TensorLayout *k = layout.units[1].find(TensorRole::k_weight), *v = layout.units[1].find(TensorRole::v_weight);
  EXPECT_FALSE(std::equal(&a[k->offset], &a[k->offset] + k->elements, &a[v->offset]));
}

TEST(InitWeights, NormsAreOneBiasesAndGapsZeroMatricesNormal) {
  for (const Family family : {Family::gpt2, Family::llama}) {
    ModelDescription model = small(family);
    model.initializer_range = 0.05;
    for (const UnitLayout& unit : make_layout(model).units) {
      const std::vector<float> values = whole(model, unit, 3);
      std::vector<bool> covered(unit.padded_elements);
      for (const TensorLayout& tensor : unit.tensors) {
        for (uint64_t i = 0; i < tensor.elements; ++i) covered[tensor.offset + i] = true;
        if (tensor.shape.size() == 2) {
          const bool residual = family == Family::gpt2 && tensor.name.ends_with("c_proj.weight");
          EXPECT_NEAR(deviation_of(values, tensor) / (residual ? 0.05 / 4.0 : 0.05), 1.0, 0.05) << tensor.name;
        } else {
          const float expected = tensor.name.ends_with("bias") ? 0.0f : 1.0f;
          for (uint64_t i = 0; i < tensor.elements; ++i) ASSERT_EQ(values[tensor.offset + i], expected) << tensor.name;
        }
      }
      for (uint64_t i = 0; i < unit.padded_elements; ++i) {
        ASSERT_TRUE(covered[i] || values[i] == 0.0f) << unit.name << " gap " << i;
      }
    }
  }
}

}  // namespace
}  // namespace strata
