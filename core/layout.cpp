#include "core/layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.hpp"

namespace strata {
namespace {

uint64_t align_up(uint64_t value, uint64_t alignment) {
  uint64_t sum = 0;
  if (__builtin_add_overflow(value, alignment - 1, &sum)) {
    throw Error(ErrorCode::invalid_configuration, "a unit of the model has more elements than 64 bits can count");
  }
  return sum / alignment * alignment;
}

uint64_t element_count(const std::string& name, const std::vector<int64_t>& shape) {
  uint64_t count = 1;
  for (const int64_t size : shape) {
    if (size <= 0 || __builtin_mul_overflow(count, static_cast<uint64_t>(size), &count)) {
      throw Error(ErrorCode::invalid_configuration, "a tensor has no elements or more than 64 bits can count", name,
                  "check the sizes in the model's config.json");
    }
  }
  return count;
}

class UnitBuilder {
 public:
  UnitBuilder(UnitKind kind, int64_t layer, std::string name) {
    unit_.kind = kind;
    unit_.layer = layer;
    unit_.name = std::move(name);
  }

  /// A tensor that starts at an aligned offset.
  void add(TensorRole role, std::string name, std::vector<int64_t> shape) {
    end_ = align_up(end_, kTensorAlignElements);
    follow(role, std::move(name), std::move(shape));
  }

  /// A tensor of the same fused group as the one before: no gap between them.
  void follow(TensorRole role, std::string name, std::vector<int64_t> shape) {
    const uint64_t elements = element_count(name, shape);
    unit_.tensors.push_back({std::move(name), role, std::move(shape), end_, elements});
    if (__builtin_add_overflow(end_, elements, &end_)) {
      throw Error(ErrorCode::invalid_configuration, "the unit has more elements than 64 bits can count", unit_.name);
    }
    unit_.elements += elements;
  }

  UnitLayout finish() {
    unit_.padded_elements = align_up(end_, kBlockElements);
    return std::move(unit_);
  }

 private:
  UnitLayout unit_;
  uint64_t end_ = 0;
};

UnitLayout gpt2_block(const ModelDescription& model, int64_t layer) {
  const int64_t hidden = model.hidden_size, inner = model.intermediate_size, attention = model.query_size();
  const std::string prefix = fmt::format("transformer.h.{}.", layer);
  UnitBuilder unit(UnitKind::block, layer, fmt::format("block {}", layer));
  unit.add(TensorRole::attention_norm_weight, prefix + "ln_1.weight", {hidden});
  unit.add(TensorRole::attention_norm_bias, prefix + "ln_1.bias", {hidden});
  unit.add(TensorRole::qkv_weight, prefix + "attn.c_attn.weight", {hidden, 3 * attention});
  unit.add(TensorRole::qkv_bias, prefix + "attn.c_attn.bias", {3 * attention});
  unit.add(TensorRole::attention_output_weight, prefix + "attn.c_proj.weight", {attention, hidden});
  unit.add(TensorRole::attention_output_bias, prefix + "attn.c_proj.bias", {hidden});
  unit.add(TensorRole::mlp_norm_weight, prefix + "ln_2.weight", {hidden});
  unit.add(TensorRole::mlp_norm_bias, prefix + "ln_2.bias", {hidden});
  unit.add(TensorRole::up_weight, prefix + "mlp.c_fc.weight", {hidden, inner});
  unit.add(TensorRole::up_bias, prefix + "mlp.c_fc.bias", {inner});
  unit.add(TensorRole::down_weight, prefix + "mlp.c_proj.weight", {inner, hidden});
  unit.add(TensorRole::down_bias, prefix + "mlp.c_proj.bias", {hidden});
  return unit.finish();
}

UnitLayout llama_block(const ModelDescription& model, int64_t layer) {
  const int64_t hidden = model.hidden_size, inner = model.intermediate_size;
  const int64_t query = model.query_size(), key = model.kv_size();
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
  UnitBuilder unit(UnitKind::block, layer, fmt::format("block {}", layer));
  unit.add(TensorRole::attention_norm_weight, prefix + "input_layernorm.weight", {hidden});
  unit.add(TensorRole::q_weight, attention + "q_proj.weight", {query, hidden});
  unit.follow(TensorRole::k_weight, attention + "k_proj.weight", {key, hidden});
  unit.follow(TensorRole::v_weight, attention + "v_proj.weight", {key, hidden});
  if (model.qkv_bias) {
    unit.add(TensorRole::q_bias, attention + "q_proj.bias", {query});
    unit.follow(TensorRole::k_bias, attention + "k_proj.bias", {key});
    unit.follow(TensorRole::v_bias, attention + "v_proj.bias", {key});
  }
  if (model.qk_norm) {
    unit.add(TensorRole::q_norm_weight, attention + "q_norm.weight", {model.head_dim});
    unit.add(TensorRole::k_norm_weight, attention + "k_norm.weight", {model.head_dim});
  }
  unit.add(TensorRole::attention_output_weight, attention + "o_proj.weight", {hidden, query});
  if (model.attention_output_bias) unit.add(TensorRole::attention_output_bias, attention + "o_proj.bias", {hidden});
  unit.add(TensorRole::mlp_norm_weight, prefix + "post_attention_layernorm.weight", {hidden});
  unit.add(TensorRole::gate_weight, mlp + "gate_proj.weight", {inner, hidden});
  unit.follow(TensorRole::up_weight, mlp + "up_proj.weight", {inner, hidden});
  if (model.mlp_bias) {
    unit.add(TensorRole::gate_bias, mlp + "gate_proj.bias", {inner});
    unit.follow(TensorRole::up_bias, mlp + "up_proj.bias", {inner});
  }
  unit.add(TensorRole::down_weight, mlp + "down_proj.weight", {hidden, inner});
  if (model.mlp_bias) unit.add(TensorRole::down_bias, mlp + "down_proj.bias", {hidden});
  return unit.finish();
}

}  // namespace

const TensorLayout* UnitLayout::find(TensorRole role) const {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [&](const auto& tensor) { return tensor.role == role; });
  return found == tensors.end() ? nullptr : &*found;
}

uint64_t ModelLayout::elements() const {
  uint64_t sum = 0;
  for (const UnitLayout& unit : units) sum += unit.elements;
  return sum;
}

ModelLayout make_layout(const ModelDescription& model) {
  const bool gpt2 = model.family == Family::gpt2;
  const int64_t hidden = model.hidden_size;
  ModelLayout layout;

  UnitBuilder embedding(UnitKind::embedding, -1, "embedding");
  embedding.add(TensorRole::token_embedding, gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight",
                {model.vocab_size, hidden});
  if (gpt2) embedding.add(TensorRole::position_embedding, "transformer.wpe.weight", {model.max_positions, hidden});
  layout.units.push_back(embedding.finish());

  for (int64_t layer = 0; layer < model.layers; ++layer) {
    layout.units.push_back(gpt2 ? gpt2_block(model, layer) : llama_block(model, layer));
  }

  UnitBuilder head(UnitKind::head, -1, "head");
  head.add(TensorRole::final_norm_weight, gpt2 ? "transformer.ln_f.weight" : "model.norm.weight", {hidden});
  if (gpt2) head.add(TensorRole::final_norm_bias, "transformer.ln_f.bias", {hidden});
  if (!model.tied_head) head.add(TensorRole::head_weight, "lm_head.weight", {model.vocab_size, hidden});
  layout.units.push_back(head.finish());
  return layout;
}

Range shard_range(uint64_t padded_elements, int rank, int world_size) {
  STRATA_CHECK(padded_elements % kBlockElements == 0, "padded_elements {}", padded_elements);
  STRATA_CHECK(world_size > 0 && rank >= 0 && rank < world_size, "rank {} of {}", rank, world_size);
  const uint64_t ranks = static_cast<uint64_t>(world_size);
  const uint64_t blocks = padded_elements / kBlockElements;
  const uint64_t share = blocks / ranks + (blocks % ranks != 0 ? 1 : 0);
  const uint64_t first = std::min(blocks, share * static_cast<uint64_t>(rank));
  return {first * kBlockElements, std::min(share, blocks - first) * kBlockElements};
}

std::vector<Range> tile_ranges(Range shard, uint64_t tile_elements) {
  STRATA_CHECK(tile_elements > 0 && tile_elements % kBlockElements == 0, "tile_elements {}", tile_elements);
  STRATA_CHECK(shard.first % kBlockElements == 0 && shard.count % kBlockElements == 0, "shard [{}, +{})", shard.first,
               shard.count);
  std::vector<Range> tiles;
  tiles.reserve(shard.count / tile_elements + 1);
  for (uint64_t done = 0; done < shard.count;) {
    const uint64_t count = std::min(tile_elements, shard.count - done);
    tiles.push_back({shard.first + done, count});
    done += count;
  }
  return tiles;
}

}  // namespace strata
