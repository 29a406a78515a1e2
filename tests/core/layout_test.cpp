#include "core/layout.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"

namespace strata {
namespace {

ModelDescription gpt2_small() {
  ModelDescription model;
  model.family = Family::gpt2;
  model.vocab_size = 50257;
  model.hidden_size = 768;
  model.layers = 12;
  model.heads = model.kv_heads = 12;
  model.head_dim = 64;
  model.intermediate_size = 3072;
  model.max_positions = 1024;
  model.tied_head = true;
  return model;
}

ModelDescription qwen3_like() {
  ModelDescription model;
  model.family = Family::llama;
  model.vocab_size = 101;
  model.hidden_size = 20;
  model.layers = 2;
  model.heads = 3;
  model.kv_heads = 1;
  model.head_dim = 6;
  model.intermediate_size = 33;
  model.max_positions = 64;
  model.qkv_bias = model.attention_output_bias = model.mlp_bias = model.qk_norm = true;
  return model;
}

TEST(Layout, Gpt2SmallHasItsPublishedParameterCount) {
  const ModelLayout layout = make_layout(gpt2_small());
  EXPECT_EQ(layout.elements(), 124439808u);
  ASSERT_EQ(layout.units.size(), 14u);
  EXPECT_EQ(layout.units.front().kind, UnitKind::embedding);
  EXPECT_EQ(layout.units[1].name, "block 0");
  EXPECT_EQ(layout.units[1].layer, 0);
  EXPECT_EQ(layout.units.back().kind, UnitKind::head);
  EXPECT_EQ(layout.units.back().find(TensorRole::head_weight), nullptr) << "a tied head holds the final norm alone";
  EXPECT_EQ(layout.units[12].find(TensorRole::up_weight)->name, "transformer.h.11.mlp.c_fc.weight");
  EXPECT_EQ(layout.units[1].find(TensorRole::qkv_weight)->shape, (std::vector<int64_t>{768, 2304}));
}

TEST(Layout, UntiedGpt2HasAHeadOfItsOwn) {
  ModelDescription model = gpt2_small();
  model.tied_head = false;
  const ModelLayout layout = make_layout(model);
  ASSERT_NE(layout.units.back().find(TensorRole::head_weight), nullptr);
  EXPECT_EQ(layout.units.back().find(TensorRole::head_weight)->name, "lm_head.weight");
  EXPECT_EQ(layout.elements(), 124439808u + 50257u * 768u);
}

TEST(Layout, FusedGroupsHaveNoGapAndEverythingElseIsAligned) {
  const ModelLayout layout = make_layout(qwen3_like());
  const auto follows = [](TensorRole role) {
    return role == TensorRole::k_weight || role == TensorRole::v_weight || role == TensorRole::k_bias ||
           role == TensorRole::v_bias || role == TensorRole::up_weight || role == TensorRole::up_bias;
  };
  for (const UnitLayout& unit : layout.units) {
    uint64_t end = 0, sum = 0;
    for (const TensorLayout& tensor : unit.tensors) {
      if (follows(tensor.role)) {
        EXPECT_EQ(tensor.offset, end) << tensor.name;
      } else {
        EXPECT_EQ(tensor.offset % kTensorAlignElements, 0u) << tensor.name;
        EXPECT_GE(tensor.offset, end) << tensor.name;
        EXPECT_LT(tensor.offset - end, kTensorAlignElements) << tensor.name;
      }
      end = tensor.offset + tensor.elements;
      sum += tensor.elements;
    }
    EXPECT_EQ(unit.elements, sum);
    EXPECT_EQ(unit.padded_elements % kBlockElements, 0u);
    EXPECT_GE(unit.padded_elements, end);
    EXPECT_LT(unit.padded_elements - end, kBlockElements);
  }
}

TEST(Layout, LlamaTensorsHaveTheirHuggingFaceNamesAndShapes) {
  const ModelLayout layout = make_layout(qwen3_like());
  const UnitLayout& block = layout.units[2];
  EXPECT_EQ(block.find(TensorRole::q_weight)->name, "model.layers.1.self_attn.q_proj.weight");
  EXPECT_EQ(block.find(TensorRole::q_weight)->shape, (std::vector<int64_t>{18, 20}));
  EXPECT_EQ(block.find(TensorRole::k_weight)->shape, (std::vector<int64_t>{6, 20}));
  EXPECT_EQ(block.find(TensorRole::attention_output_weight)->shape, (std::vector<int64_t>{20, 18}));
  EXPECT_EQ(block.find(TensorRole::q_norm_weight)->shape, (std::vector<int64_t>{6}));
  EXPECT_EQ(block.find(TensorRole::down_weight)->shape, (std::vector<int64_t>{20, 33}));
  EXPECT_EQ(block.find(TensorRole::down_bias)->name, "model.layers.1.mlp.down_proj.bias");
  EXPECT_EQ(layout.units[0].tensors.size(), 1u);
  EXPECT_EQ(layout.units[0].tensors[0].name, "model.embed_tokens.weight");
  EXPECT_EQ(layout.units[3].tensors[0].name, "model.norm.weight");
  EXPECT_EQ(layout.units[3].tensors[1].name, "lm_head.weight");
}

TEST(Layout, CountsGoBeyondThirtyTwoBits) {
  ModelDescription model = qwen3_like();
  model.vocab_size = 1'000'000;
  model.hidden_size = 5000;
  const ModelLayout layout = make_layout(model);
  EXPECT_EQ(layout.units[0].elements, 5'000'000'000u);
  EXPECT_EQ(layout.units[0].padded_elements, 5'000'003'584u);
  EXPECT_EQ(layout.units[3].find(TensorRole::head_weight)->offset, 5056u);
  for (const uint64_t elements : {(1ull << 31) + kBlockElements, (1ull << 32) + 3 * kBlockElements}) {
    uint64_t next = 0;
    for (int rank = 0; rank < 3; ++rank) {
      const Range shard = shard_range(elements, rank, 3);
      EXPECT_EQ(shard.first, next);
      for (const Range& tile : tile_ranges(shard, 1ull << 30)) {
        EXPECT_EQ(tile.first, next);
        EXPECT_LE(tile.count, 1ull << 30);
        EXPECT_EQ(tile.count % kBlockElements, 0u);
        next += tile.count;
      }
    }
    EXPECT_EQ(next, elements);
  }
}

TEST(Layout, AModelThatDoesNotFitIn64BitsIsRefused) {
  ModelDescription model = qwen3_like();
  model.vocab_size = model.hidden_size = 1ll << 33;
  EXPECT_THROW(make_layout(model), Error);
}

TEST(Layout, ShardsOfMoreRanksThanBlocksAreEmptyAtTheEnd) {
  const uint64_t elements = 5 * kBlockElements;
  const std::vector<uint64_t> blocks_of_4 = {2, 2, 1, 0};
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(shard_range(elements, rank, 4).count, blocks_of_4[static_cast<size_t>(rank)] * kBlockElements);
  }
  for (int rank = 5; rank < 8; ++rank) EXPECT_EQ(shard_range(elements, rank, 8).count, 0u);
  EXPECT_EQ(shard_range(elements, 0, 1), (Range{0, elements}));
  EXPECT_TRUE(tile_ranges({elements, 0}, kBlockElements).empty());
}

TEST(Layout, MisusedRangesAreCaught) {
  EXPECT_THROW(shard_range(kBlockElements + 1, 0, 1), Error);
  EXPECT_THROW(shard_range(kBlockElements, 1, 1), Error);
  EXPECT_THROW(tile_ranges({0, kBlockElements}, 0), Error);
  EXPECT_THROW(tile_ranges({0, kBlockElements}, kBlockElements + 64), Error);
}

}  // namespace
}  // namespace strata
