// Where every parameter lies: the model cut into units, each unit one flat buffer, each flat buffer cut into shards and tiles.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model.hpp"

namespace strata {

/// What is gathered, computed and released as one.
enum class UnitKind { embedding, block, head };

/// Tensors start at multiples of this, except inside a fused group, where they follow each other without a gap.
inline constexpr uint64_t kTensorAlignElements = 64;
/// Units end, and shards and tiles begin and end, at multiples of this. The gradient norm is summed block by block of this
/// size, so neither tile size nor world size changes its bits.
inline constexpr uint64_t kBlockElements = 4096;

/// What a tensor is to the engine. q, k, v (and gate, up) are laid out back to back so that one product serves them.
enum class TensorRole {
  token_embedding, position_embedding,
  attention_norm_weight, attention_norm_bias,
  qkv_weight, qkv_bias,                       // GPT-2: one tensor [hidden, 3 hidden] (input-major, as HF's Conv1D)
  q_weight, k_weight, v_weight,               // Llama family: [out, in]
  q_bias, k_bias, v_bias,
  q_norm_weight, k_norm_weight,
  attention_output_weight, attention_output_bias,
  mlp_norm_weight, mlp_norm_bias,
  gate_weight, up_weight, up_bias, gate_bias, down_weight, down_bias,  // GPT-2's c_fc is up, its mlp.c_proj is down
  final_norm_weight, final_norm_bias,
  head_weight,
};

struct TensorLayout {
  std::string name;            // as in the HF file ("model.layers.0.self_attn.q_proj.weight")
  TensorRole role;
  std::vector<int64_t> shape;  // as in the HF file
  uint64_t offset = 0;         // elements from the start of the unit's flat buffer
  uint64_t elements = 0;
};

struct UnitLayout {
  UnitKind kind;
  int64_t layer = -1;  // for blocks
  std::string name;    // "embedding", "block 3", "head"
  std::vector<TensorLayout> tensors;  // ordered by offset
  uint64_t elements = 0;         // of the tensors alone
  uint64_t padded_elements = 0;  // of the flat buffer; a multiple of kBlockElements. Gaps hold zeros for ever

  /// The tensor with that role, or null.
  const TensorLayout* find(TensorRole role) const;
};

struct ModelLayout {
  std::vector<UnitLayout> units;  // embedding, block 0 ... block L-1, head. A tied head's unit has no head_weight
  uint64_t elements() const;      // parameters of the model, tied weights once
};

ModelLayout make_layout(const ModelDescription& model);

/// The part [first, first + count) of a unit's flat buffer, in elements. count may be 0.
struct Range {
  uint64_t first = 0;
  uint64_t count = 0;
  bool operator==(const Range&) const = default;
};

/// Rank `rank`'s shard of `padded_elements`: equal multiples of kBlockElements, the last ranks shorter or empty.
Range shard_range(uint64_t padded_elements, int rank, int world_size);

/// The shard cut into tiles of at most `tile_elements` (a positive multiple of kBlockElements).
std::vector<Range> tile_ranges(Range shard, uint64_t tile_elements);

}  // namespace strata
