// Row-wise and element-wise kernels of the transformer, as asynchronous work on a stream.
#pragma once

#include <cstdint>

#include "core/dtype.hpp"
#include "core/model.hpp"
#include "cpu_adam/adam.hpp"
#include "gpu/device.hpp"

namespace strata::gpu {

/// `count` rows of `columns` elements, `stride` elements apart.
struct Rows {
  int64_t count = 0;
  int64_t columns = 0;
  int64_t stride = 0;
};

/// Activations (x, y, d_*) are in `dtype` (the compute dtype), statistics and weight gradients in fp32; all arithmetic is fp32
/// inside, sums over a row or over rows are taken in an order that depends only on the shape. Row kernels never fail. On the host device
/// the bits depend neither on the thread count nor on the instruction set (but for the last bit of a loss, which is the system's log).
class RowKernels {
 public:
  virtual ~RowKernels() = default;

  /// RMSNorm over the columns: y = x * rstd * weight, rstd[row] = 1/sqrt(mean(x^2) + epsilon). As HF's Llama: x * rstd is rounded to
  /// dtype before it is multiplied by the weight. `y_stride` in elements; y may alias x when strides agree.
  virtual void rms_norm(Stream&, DType dtype, Rows rows, const void* x, const void* weight, float epsilon, void* y,
                        int64_t y_stride, float* rstd) = 0;
  /// d_x = gradient of the input (when add_to_dx: d_x += it); d_weight = or += (by `accumulate_weight`) sum over rows of d_y * xhat.
  /// d_y has stride d_y_stride, d_x has stride d_x_stride; d_x may alias d_y. scratch: reduction_scratch_bytes().
  virtual void rms_norm_backward(Stream&, DType dtype, Rows rows, const void* x, const void* weight, const float* rstd,
                                 const void* d_y, int64_t d_y_stride, void* d_x, int64_t d_x_stride, bool add_to_dx,
                                 float* d_weight, bool accumulate_weight, void* scratch) = 0;
  /// LayerNorm with weight and bias; statistics[2 row] = mean, [2 row + 1] = rstd.
  virtual void layer_norm(Stream&, DType dtype, Rows rows, const void* x, const void* weight, const void* bias,
                          float epsilon, void* y, int64_t y_stride, float* statistics) = 0;
  virtual void layer_norm_backward(Stream&, DType dtype, Rows rows, const void* x, const void* weight,
                                   const float* statistics, const void* d_y, int64_t d_y_stride, void* d_x,
                                   int64_t d_x_stride, bool add_to_dx, float* d_weight, float* d_bias,
                                   bool accumulate_weight, void* scratch) = 0;
  /// Scratch that the two norm backwards and column_sum need for `columns` columns and `rows` rows.
  virtual uint64_t reduction_scratch_bytes(int64_t rows, int64_t columns) const = 0;

  /// Rotary embedding in place on `heads` heads of head_dim, HF's half-split layout: pairs (i, i + head_dim/2). Row t has position
  /// t % sequence_length; cosines and sines are fp32 tables [sequence_length, head_dim / 2]. `inverse` rotates back (the gradient).
  virtual void rope(Stream&, DType dtype, Rows rows, void* x, int64_t heads, int64_t head_dim, const float* cosines,
                    const float* sines, int64_t sequence_length, bool inverse) = 0;

  /// y = activation(x) (GPT-2's MLP); backward: d_x = d_y * activation'(x), which may be d_y, and y again.
  virtual void activation(Stream&, DType dtype, Activation kind, int64_t elements, const void* x, void* y) = 0;
  virtual void activation_backward(Stream&, DType dtype, Activation kind, int64_t elements, const void* x,
                                   const void* d_y, void* y, void* d_x) = 0;
  /// Gated MLP: rows of [gate (columns) | up (columns)], stride 2 * columns; y = activation(gate) * up, [count, columns] dense.
  virtual void gated_activation(Stream&, DType dtype, Activation kind, int64_t rows, int64_t columns,
                                const void* gate_up, void* y) = 0;
  /// And y again. d_gate_up has gate_up's shape and may alias it.
  virtual void gated_activation_backward(Stream&, DType dtype, Activation kind, int64_t rows, int64_t columns,
                                         const void* gate_up, const void* d_y, void* y, void* d_gate_up) = 0;

  /// x[row, :] += bias.
  virtual void add_bias(Stream&, DType dtype, Rows rows, void* x, const void* bias) = 0;
  /// sums[column] = or += sum over rows of x (bias gradients).
  virtual void column_sum(Stream&, DType dtype, Rows rows, const void* x, float* sums, bool accumulate, void* scratch) = 0;
  /// y = a + b, elementwise; y may alias either.
  virtual void add(Stream&, DType dtype, int64_t elements, const void* a, const void* b, void* y) = 0;

  /// y[t, :] = table[tokens[t], :] (+ positions[t % sequence_length, :] when positions is not null).
  virtual void gather(Stream&, DType dtype, int64_t tokens_count, int64_t columns, const int32_t* tokens,
                      const void* table, const void* positions, int64_t sequence_length, void* y) = 0;
  /// d_table[tokens[t], :] += d_y[t, :], and the same for d_positions when not null, in token order for every element (the bits do
  /// not depend on threads).
  virtual void scatter_add(Stream&, DType dtype, int64_t tokens_count, int64_t columns, const int32_t* tokens,
                           const void* d_y, float* d_table, float* d_positions, int64_t sequence_length) = 0;

  /// Softmax cross-entropy over `rows` rows of logits (dense, `columns` = vocabulary), in `logits_dtype`. losses[row] = the row's negative
  /// log-likelihood, 0 where labels[row] is -100. When d_logits is not null: d_logits = scale * (softmax - onehot) in
  /// `gradient_dtype`, zero rows where the label is -100; it may alias logits when the dtypes agree, and the logits are lost. Any other
  /// label outside [0, columns) gives a NaN loss and gradient.
  virtual void cross_entropy(Stream&, DType logits_dtype, int64_t rows, int64_t columns, void* logits,
                             const int32_t* labels, float scale, double* losses, DType gradient_dtype, void* d_logits) = 0;
  /// *sum = (accumulate ? *sum : 0) + values[0] + values[1] + ..., in that order.
  virtual void sum_in_order(Stream&, int64_t count, const double* values, double* sum, bool accumulate) = 0;

  /// Converts fp32 <-> dtype (bf16 rounds ties away from zero, as core/dtype.hpp).
  virtual void cast(Stream&, DType from, DType to, int64_t elements, const void* x, void* y) = 0;
  /// block_sums[b] = sum of squares, in double, of elements [4096 b, 4096 (b + 1)) of x (core/layout.hpp, kBlockElements). elements is
  /// a multiple of 4096. A non-finite element makes its block's sum non-finite. The order is the same on every device: accumulator k
  /// of 16 takes elements k, k + 16, ... of the block from 0; then accumulator k takes number k + 8, then k + 4, k + 2, k + 1.
  virtual void sum_squares(Stream&, DType dtype, int64_t elements, const void* x, double* block_sums) = 0;

  /// AdamW on a tile whose every section is in device memory. Same bits as the CPU update. 
  virtual void adamw(Stream&, const AdamTile& tile) = 0;
};

}  // namespace strata::gpu
