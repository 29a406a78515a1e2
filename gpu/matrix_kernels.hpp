// Matrix products of linear layers, as asynchronous work on a stream: planned once per shape, then called without allocating.
#pragma once

#include <cstdint>
#include <memory>

#include "core/dtype.hpp"
#include "gpu/device.hpp"

namespace strata::gpu {

/// How a weight matrix lies in memory: [outputs, inputs] as torch's Linear has it, or [inputs, outputs] as GPT-2's Conv1D.
enum class WeightOrder { output_major, input_major };

/// A linear layer y = x W + bias + residual over `tokens` rows. All matrices are dense and row-major.
struct LinearSpec {
  DType dtype = DType::f32;         // of x, weights, bias, residual, d_y and d_x
  DType output_dtype = DType::f32;  // of y: dtype, or f32
  int64_t tokens = 0;
  int64_t tail_tokens = 0;  // a second row count that calls may give; 0 = none
  int64_t inputs = 0;
  int64_t outputs = 0;
  WeightOrder order = WeightOrder::output_major;
  bool bias = false;      // y includes bias[outputs]
  bool residual = false;  // y includes residual[tokens, outputs]; the sum is rounded once
  bool forward_only = false;
};

/// One planned layer. Calls enqueue and return; `tokens` is spec.tokens or spec.tail_tokens. Products accumulate in fp32; the same
/// inputs give the same bits. Buffers are device memory, aligned to 64 bytes. `prepared` is the packed form of the weights that the
/// matching prepare call wrote; `workspace` holds workspace_bytes(), and nothing in it outlives the call.
class Linear {
 public:
  virtual ~Linear() = default;
  virtual const LinearSpec& spec() const = 0;

  virtual uint64_t forward_prepared_bytes() const = 0;
  virtual uint64_t backward_prepared_bytes() const = 0;
  virtual uint64_t workspace_bytes() const = 0;

  virtual void prepare_forward(Stream&, const void* weights, void* prepared) = 0;
  virtual void prepare_backward(Stream&, const void* weights, void* prepared) = 0;

  /// y[tokens, outputs]. bias and residual are read where the spec has them; y aliases no input.
  virtual void forward(Stream&, int64_t tokens, const void* x, const void* weights, const void* forward_prepared,
                       const void* bias, const void* residual, void* y, void* workspace) = 0;
  /// d_x[tokens, inputs] = d_y W^T. d_x may not alias d_y. Reads both prepared forms.
  virtual void backward_input(Stream&, int64_t tokens, const void* d_y, const void* weights, const void* forward_prepared,
                              const void* backward_prepared, void* d_x, void* workspace) = 0;
  /// d_weights (fp32, in the weights' order) = or += the gradient x^T d_y.
  virtual void backward_weight(Stream&, int64_t tokens, const void* x, const void* d_y, float* d_weights, bool accumulate,
                               void* workspace) = 0;
};

/// Plans layers for one device.
class MatrixKernels {
 public:
  virtual ~MatrixKernels() = default;
  /// May take long (it compiles kernels). The layer must not outlive the device.
  virtual std::unique_ptr<Linear> create_linear(const LinearSpec& spec) = 0;
};

}  // namespace strata::gpu
