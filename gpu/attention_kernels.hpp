// Causal attention, forward and backward, on the fused [q | k | v] activation, as asynchronous work on a stream.
#pragma once

#include <cstdint>

#include "core/dtype.hpp"
#include "gpu/device.hpp"

namespace strata::gpu {

/// Rows are tokens, sequence after sequence; a row of qkv is [heads * head_dim | kv_heads * head_dim | kv_heads * head_dim],
/// a row of the output is [heads * head_dim], both dense. Query head h reads key head h / (heads / kv_heads).
struct AttentionShape {
  DType dtype = DType::f32;
  int64_t sequences = 0;
  int64_t sequence_length = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;  // latest positions that a token attends to, itself included; 0 = all
  float scale = 1.0f;  // on q.k

  bool operator==(const AttentionShape&) const = default;
};

/// Scores, softmax and sums are fp32 inside; the order of every sum depends on the shape alone.
class AttentionKernels {
 public:
  virtual ~AttentionKernels() = default;

  /// Scratch for one forward or backward call of that shape.
  virtual uint64_t workspace_bytes(const AttentionShape& shape) const = 0;

  /// output = softmax(scale * q k^T, masked) v. log_sum_exp[sequence, head, position] (fp32) is what backward rebuilds the
  /// probabilities from.
  virtual void forward(Stream&, const AttentionShape& shape, const void* qkv, void* output, float* log_sum_exp,
                       void* workspace) = 0;
  /// d_qkv = the gradient of all three parts; d_output has output's shape. d_qkv may not alias an input.
  virtual void backward(Stream&, const AttentionShape& shape, const void* qkv, const void* output, const float* log_sum_exp,
                        const void* d_output, void* d_qkv, void* workspace) = 0;
};

}  // namespace strata::gpu
