// The transformer engine: forward and backward of one unit for one micro-batch, as work on a stream. It owns no memory of the
// device but its constant tables; the caller gives every buffer, so the caller's plan is exact.
#pragma once

#include <cstdint>
#include <memory>

#include "core/dtype.hpp"
#include "core/layout.hpp"
#include "core/model.hpp"
#include "gpu/device.hpp"

namespace strata::gpu {

/// Whether a gradient buffer already holds the sum over earlier micro-batches.
enum class Accumulate { first, add };

/// Which products a unit's weights are prepared (packed) for.
enum class Pass { forward, backward };

struct EngineOptions {
  DType compute = DType::bf16;    // of parameters, activations and their gradients
  int64_t micro_batch_size = 1;   // sequences
  int64_t sequence_length = 0;    // tokens of each
};

/// Buffers are device memory, 256-byte aligned. `params` is the unit's flat buffer in the compute dtype; gradients are its
/// flat fp32 twin (padded_elements floats). `hidden` is [micro_batch_size, sequence_length, hidden_size] in the compute dtype. All
/// calls enqueue on `stream` and return. A unit is given by its index in ModelLayout::units.
/// The same calls with the same inputs give the same bits, wherever the buffers lie and however often they were used.
class Engine {
 public:
  /// Throws invalid_configuration when the sequence is longer than the model's positions.
  static std::unique_ptr<Engine> create(Device& device, const ModelDescription& model, const ModelLayout& layout,
                                        const EngineOptions& options);
  virtual ~Engine() = default;

  /// Exact sizes in bytes.
  virtual uint64_t hidden_bytes() const = 0;
  /// What a block keeps of one micro-batch's forward for its backward, besides its input.
  virtual uint64_t saved_bytes() const = 0;
  /// Scratch for any one call; nothing in it lives from one call to the next.
  virtual uint64_t workspace_bytes() const = 0;
  /// Constant tables (RoPE) that the engine took from the device at creation.
  virtual uint64_t table_bytes() const = 0;
  /// Room for the prepared form of a unit's weights (0 where none is used). For a tied head, the head unit's prepared buffer
  /// holds the prepared embedding.
  virtual uint64_t prepared_bytes(int unit, Pass pass) const = 0;
  /// FLOPs of the matrix products of one micro-batch (attention counted causally), for the report and the simulator.
  virtual double forward_flops(int unit) const = 0;
  virtual double backward_flops(int unit) const = 0;

  /// Packs a unit's weights for the given pass, once per arrival of `params` on the device. `embedding_params` is read for a tied
  /// head only. Pass::backward includes what a recomputed forward needs.
  virtual void prepare(Stream& stream, int unit, Pass pass, const void* params, const void* embedding_params,
                       void* prepared) = 0;

  /// hidden = embedding of tokens ([micro_batch_size, sequence_length] int32), plus learned positions.
  virtual void embedding_forward(Stream& stream, const void* params, const int32_t* tokens, void* hidden) = 0;
  /// gradients += (or =) the embedding's gradient. It touches every element when `first`, gaps included.
  virtual void embedding_backward(Stream& stream, const int32_t* tokens, const void* d_hidden, float* gradients,
                                  Accumulate accumulate, void* workspace) = 0;

  /// One block. `saved` receives what block_backward reads; running it again gives the same `saved`. hidden_out may be null
  /// (a recomputation needs only `saved`); otherwise it may not alias hidden_in.
  virtual void block_forward(Stream& stream, int unit, const void* params, const void* prepared, const void* hidden_in,
                             void* hidden_out, void* saved, void* workspace) = 0;
  /// d_hidden: in, the gradient of the block's output; out, of its input.
  virtual void block_backward(Stream& stream, int unit, const void* params, const void* prepared, const void* hidden_in,
                              const void* saved, void* d_hidden, float* gradients, Accumulate accumulate,
                              void* workspace) = 0;

  struct HeadBuffers {
    const void* params = nullptr;            // of the head unit
    const void* embedding_params = nullptr;  // read when the head is tied
    const void* prepared = nullptr;
    const void* hidden = nullptr;
    const int32_t* labels = nullptr;  // [micro_batch_size, sequence_length]; -100 does not count
    void* workspace = nullptr;
  };
  /// *loss_sum = sum over counting tokens of the negative log-likelihood (in double, in token order).
  virtual void head_loss(Stream& stream, const HeadBuffers& buffers, double* loss_sum) = 0;
  /// The same, and the backward pass of the head: gradients are those of gradient_scale * loss_sum. A tied head writes the
  /// head_weight gradient to embedding_gradients (every element when `first`, gaps included).
  virtual void head_loss_backward(Stream& stream, const HeadBuffers& buffers, float gradient_scale, double* loss_sum,
                                  void* d_hidden, float* gradients, float* embedding_gradients,
                                  Accumulate accumulate) = 0;
  /// logits: fp32 [micro_batch_size * sequence_length, vocab_size].
  virtual void head_logits(Stream& stream, const HeadBuffers& buffers, float* logits) = 0;
};

}  // namespace strata::gpu
