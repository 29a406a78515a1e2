// The model's ends: the embedding, and the head with the loss, which works in token chunks so that logits of all tokens never
// exist at once.
#pragma once

#include "core/layout.hpp"
#include "core/model.hpp"
#include "gpu/engine.hpp"
#include "gpu/engine/buffers.hpp"
#include "gpu/engine/norm.hpp"
#include "gpu/engine/projection.hpp"

namespace strata::gpu {

class Embedding {
 public:
  Embedding(Device& device, const ModelDescription& model, const ModelLayout& layout, const EngineOptions& options);

  void forward(Stream& stream, const void* params, const int32_t* tokens, void* hidden) const;
  void backward(Stream& stream, const int32_t* tokens, const void* d_hidden, float* gradients, bool accumulate) const;

 private:
  Device* device_;
  DType dtype_;
  int64_t tokens_, sequence_length_, hidden_size_;
  UnitTensors unit_;
};

/// Buffers as in Engine.
class Head {
 public:
  Head(Device& device, const ModelDescription& model, const ModelLayout& layout, const EngineOptions& options);

  uint64_t workspace_bytes() const { return workspace_.bytes; }
  uint64_t prepared_bytes(Pass pass) const { return pass == Pass::forward ? prepared_forward_bytes_ : prepared_bytes_; }
  double forward_flops() const { return flops_; }
  /// The forward runs in the same call.
  double backward_flops() const { return 3.0 * flops_; }

  void prepare(Stream& stream, Pass pass, const void* params, const void* embedding_params, void* prepared) const;
  void loss(Stream& stream, const Engine::HeadBuffers& buffers, double* loss_sum) const;
  void loss_backward(Stream& stream, const Engine::HeadBuffers& buffers, float gradient_scale, double* loss_sum, void* d_hidden,
                     float* gradients, float* embedding_gradients, bool accumulate) const;
  void logits(Stream& stream, const Engine::HeadBuffers& buffers, float* logits) const;

 private:
  struct Chunk {
    int64_t first, count;
  };
  /// Offsets of the scratch; rows are those of a chunk.
  struct Workspace {
    uint64_t normed, d_normed;  // [rows, hidden]
    uint64_t statistics;
    uint64_t logits;            // fp32 [rows, vocabulary]
    uint64_t d_logits;          // in the compute dtype; over the logits in fp32
    uint64_t losses;            // double [rows]
    uint64_t kernel, reduction;
    uint64_t bytes;
  };

  static int64_t chunk_rows(int64_t vocabulary, int64_t tokens);
  Projection make_projection(Device& device, const EngineOptions& options) const;
  const UnitTensors& weight_unit() const { return tied_ ? embedding_ : unit_; }
  const void* weight_params(const Engine::HeadBuffers& buffers) const { return tied_ ? buffers.embedding_params : buffers.params; }
  template <typename Body>
  void for_each_chunk(Body&& body) const;
  uint64_t row_offset(int64_t row) const { return static_cast<uint64_t>(row * hidden_size_) * size_bytes(dtype_); }
  void forward_chunk(Stream& stream, const Engine::HeadBuffers& buffers, Chunk chunk, float* logits) const;

  Device* device_;
  RowKernels* rows_;
  DType dtype_;
  bool tied_;
  int64_t tokens_, hidden_size_, vocabulary_, chunk_;
  UnitTensors unit_, embedding_;
  Norm norm_;
  Projection projection_;
  Workspace workspace_{};
  uint64_t prepared_forward_bytes_ = 0, prepared_bytes_ = 0;
  double flops_ = 0;
};

}  // namespace strata::gpu
