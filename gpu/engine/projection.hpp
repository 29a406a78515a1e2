// A linear layer with its place in a unit: weights, bias and gradients by role, and the parts of the prepared buffer.
#pragma once

#include <memory>
#include <optional>

#include "gpu/engine/buffers.hpp"
#include "gpu/matrix_kernels.hpp"
#include "gpu/row_kernels.hpp"

namespace strata::gpu {

/// The first tensor of a fused group stands for the whole group.
struct ProjectionRoles {
  TensorRole weight;
  std::optional<TensorRole> bias;
};

class Projection {
 public:
  Projection(Device& device, const LinearSpec& spec, ProjectionRoles roles)
      : rows_(&device.rows()), linear_(device.matrices().create_linear(spec)), roles_(roles) {}

  /// Takes this layer's parts of the unit's prepared buffer: those of the forward pass come before all of the backward pass.
  void plan_forward_part(Region& prepared) { forward_part_ = prepared.take(linear_->forward_prepared_bytes()); }
  void plan_backward_part(Region& prepared) { backward_part_ = prepared.take(linear_->backward_prepared_bytes()); }
  uint64_t workspace_bytes() const { return linear_->workspace_bytes(); }
  /// For the bias gradient.
  uint64_t scratch_bytes() const {
    return roles_.bias ? rows_->reduction_scratch_bytes(linear_->spec().tokens, linear_->spec().outputs) : 0;
  }
  /// Of one product over all tokens: forward has one, backward two.
  double flops() const {
    const LinearSpec& spec = linear_->spec();
    return 2.0 * static_cast<double>(spec.tokens) * static_cast<double>(spec.inputs) * static_cast<double>(spec.outputs);
  }

  void prepare(Stream& stream, bool with_backward, const UnitTensors& unit, const void* params, void* prepared) const {
    const void* const weights = unit.parameter(params, roles_.weight);
    if (linear_->forward_prepared_bytes() > 0) linear_->prepare_forward(stream, weights, at(prepared, forward_part_));
    if (with_backward && linear_->backward_prepared_bytes() > 0) {
      linear_->prepare_backward(stream, weights, at(prepared, backward_part_));
    }
  }

  void forward(Stream& stream, int64_t tokens, const UnitTensors& unit, const void* params, const void* prepared, const void* x,
               const void* residual, void* y, void* workspace) const {
    linear_->forward(stream, tokens, x, unit.parameter(params, roles_.weight), at(prepared, forward_part_),
                     roles_.bias ? unit.parameter(params, *roles_.bias) : nullptr, residual, y, workspace);
  }

  void backward_input(Stream& stream, int64_t tokens, const UnitTensors& unit, const void* params, const void* prepared,
                      const void* d_y, void* d_x, void* workspace) const {
    linear_->backward_input(stream, tokens, d_y, unit.parameter(params, roles_.weight), at(prepared, forward_part_),
                            at(prepared, backward_part_), d_x, workspace);
  }

  /// Gradients of weights and bias.
  void backward_weight(Stream& stream, int64_t tokens, const UnitTensors& unit, const void* x, const void* d_y, float* gradients,
                       bool accumulate, void* workspace, void* scratch) const {
    linear_->backward_weight(stream, tokens, x, d_y, unit.gradient(gradients, roles_.weight), accumulate, workspace);
    if (!roles_.bias) return;
    const int64_t outputs = linear_->spec().outputs;
    rows_->column_sum(stream, linear_->spec().dtype, {tokens, outputs, outputs}, d_y, unit.gradient(gradients, *roles_.bias),
                      accumulate, scratch);
  }

 private:
  RowKernels* rows_;
  std::unique_ptr<Linear> linear_;
  ProjectionRoles roles_;
  uint64_t forward_part_ = 0, backward_part_ = 0;
};

}  // namespace strata::gpu
