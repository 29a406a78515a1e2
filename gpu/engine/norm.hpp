// The model's normalization over the hidden size, RMSNorm or LayerNorm, as one thing.
#pragma once

#include "core/model.hpp"
#include "gpu/device.hpp"
#include "gpu/engine/buffers.hpp"
#include "gpu/row_kernels.hpp"

namespace strata::gpu {

class Norm {
 public:
  Norm(Device& device, const ModelDescription& model, DType dtype, TensorRole weight, TensorRole bias)
      : rows_(&device.rows()), layer_norm_(model.family == Family::gpt2), columns_(model.hidden_size),
        epsilon_(static_cast<float>(model.norm_epsilon)), dtype_(dtype), weight_(weight), bias_(bias) {}

  /// fp32 statistics of one row.
  uint64_t statistics_bytes(int64_t count) const { return static_cast<uint64_t>(count) * (layer_norm_ ? 2 : 1) * sizeof(float); }
  uint64_t scratch_bytes(int64_t count) const { return rows_->reduction_scratch_bytes(count, columns_); }

  void forward(Stream& stream, int64_t count, const UnitTensors& unit, const void* params, const void* x, void* y,
               float* statistics) const {
    const Rows rows{count, columns_, columns_};
    const void* const weight = unit.parameter(params, weight_);
    if (layer_norm_) {
      rows_->layer_norm(stream, dtype_, rows, x, weight, unit.parameter(params, bias_), epsilon_, y, columns_, statistics);
    } else {
      rows_->rms_norm(stream, dtype_, rows, x, weight, epsilon_, y, columns_, statistics);
    }
  }

  /// d_x = or += (by add_to_dx) the gradient of x; the gradients of weight and bias = or += theirs.
  void backward(Stream& stream, int64_t count, const UnitTensors& unit, const void* params, const void* x, const float* statistics,
                const void* d_y, void* d_x, bool add_to_dx, float* gradients, bool accumulate, void* scratch) const {
    const Rows rows{count, columns_, columns_};
    const void* const weight = unit.parameter(params, weight_);
    float* const d_weight = unit.gradient(gradients, weight_);
    if (layer_norm_) {
      rows_->layer_norm_backward(stream, dtype_, rows, x, weight, statistics, d_y, columns_, d_x, columns_, add_to_dx, d_weight,
                                 unit.gradient(gradients, bias_), accumulate, scratch);
    } else {
      rows_->rms_norm_backward(stream, dtype_, rows, x, weight, statistics, d_y, columns_, d_x, columns_, add_to_dx, d_weight,
                               accumulate, scratch);
    }
  }

 private:
  RowKernels* rows_;
  bool layer_norm_;
  int64_t columns_;
  float epsilon_;
  DType dtype_;
  TensorRole weight_, bias_;
};

}  // namespace strata::gpu
