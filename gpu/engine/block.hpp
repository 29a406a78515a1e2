// One transformer block, forward and backward, composed of the device's kernels.
#pragma once

#include <vector>

#include "core/layout.hpp"
#include "core/model.hpp"
#include "gpu/attention_kernels.hpp"
#include "gpu/engine.hpp"
#include "gpu/engine/buffers.hpp"
#include "gpu/engine/norm.hpp"
#include "gpu/engine/projection.hpp"

namespace strata::gpu {

/// RoPE's fp32 tables [sequence_length, head_dim / 2] in device memory; null for models without RoPE.
struct RopeTables {
  const float* cosines = nullptr;
  const float* sines = nullptr;
};

/// Serves all blocks of a model: they differ only in their parameters and their sliding window. Buffers as in Engine.
class Block {
 public:
  Block(Device& device, const ModelDescription& model, const ModelLayout& layout, const EngineOptions& options, RopeTables rope);

  uint64_t saved_bytes() const { return saved_.bytes; }
  uint64_t workspace_bytes() const { return workspace_.bytes; }
  uint64_t prepared_bytes(Pass pass) const { return pass == Pass::forward ? prepared_forward_bytes_ : prepared_bytes_; }
  double forward_flops(int64_t layer) const;
  double backward_flops(int64_t layer) const;

  void prepare(Stream& stream, int64_t layer, Pass pass, const void* params, void* prepared) const;
  void forward(Stream& stream, int64_t layer, const void* params, const void* prepared, const void* hidden_in, void* hidden_out,
               void* saved, void* workspace) const;
  void backward(Stream& stream, int64_t layer, const void* params, const void* prepared, const void* hidden_in, const void* saved,
                void* d_hidden, float* gradients, bool accumulate, void* workspace) const;

 private:
  /// Offsets of what a forward keeps.
  struct Saved {
    uint64_t qkv;              // [tokens, q|k|v]; rotated, unless the model normalizes q and k: then as the product gave it
    uint64_t log_sum_exp;      // fp32 [sequences, heads, sequence_length]
    uint64_t attention;        // [tokens, heads * head_dim]
    uint64_t middle;           // [tokens, hidden]: the residual stream between attention and MLP
    uint64_t pre_activation;   // [tokens, up] or [tokens, gate|up]
    uint64_t bytes;
  };
  /// Offsets of the scratch.
  struct Workspace {
    uint64_t normed, d_normed;          // [tokens, hidden]
    uint64_t statistics;                // of a norm
    uint64_t kernel, reduction;         // what products, attention and sums over rows need
    uint64_t activated, d_activated;    // [tokens, intermediate]
    uint64_t d_pre_activation;          // as pre_activation
    uint64_t rotated, d_qkv;            // [tokens, q|k|v]
    uint64_t d_attention;               // [tokens, heads * head_dim]
    uint64_t bytes;
  };

  void plan_buffers();
  AttentionShape attention_shape(int64_t layer) const;
  const UnitTensors& unit(int64_t layer) const { return units_[static_cast<size_t>(layer)]; }
  uint64_t activation_bytes(int64_t columns) const;

  /// q and k as attention takes them, from what `saved` holds. Returns the qkv buffer to read.
  const void* rotated_qkv(Stream& stream, const UnitTensors& unit, const void* params, const void* saved, void* workspace) const;
  void rotate(Stream& stream, void* qkv, bool inverse) const;
  void activate(Stream& stream, const void* pre_activation, void* activated) const;
  void backward_mlp(Stream& stream, const UnitTensors& unit, const void* params, const void* prepared, const void* saved,
                    void* d_hidden, float* gradients, bool accumulate, void* workspace) const;
  void backward_attention(Stream& stream, int64_t layer, const void* params, const void* prepared, const void* hidden_in,
                          const void* saved, void* d_hidden, float* gradients, bool accumulate, void* workspace) const;
  void backward_qk_norm(Stream& stream, const UnitTensors& unit, const void* params, const void* saved, float* gradients,
                        bool accumulate, void* workspace) const;

  Device* device_;
  RowKernels* rows_;
  const ModelDescription model_;
  const DType dtype_;
  const int64_t sequences_, sequence_length_, tokens_;
  const int64_t qkv_columns_, up_columns_;  // of the fused products
  const RopeTables rope_;
  std::vector<UnitTensors> units_;
  Norm attention_norm_, mlp_norm_;
  Projection qkv_, attention_output_, up_, down_;
  Saved saved_{};
  Workspace workspace_{};
  uint64_t prepared_forward_bytes_ = 0, prepared_bytes_ = 0;
};

}  // namespace strata::gpu
