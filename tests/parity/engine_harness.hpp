// Runs the transformer engine on a host device as a training step does, unit by unit, with plain vectors in and out.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/dtype.hpp"
#include "core/layout.hpp"
#include "core/model.hpp"
#include "gpu/engine.hpp"
#include "gpu/host/host_device.hpp"

namespace strata::parity {

/// One flat fp32 buffer a unit, padded_elements long: parameters or gradients.
using UnitBuffers = std::vector<std::vector<float>>;

/// Whether blocks keep what their backward reads, or compute it again from their input.
enum class Activations { keep, recompute };

struct StepResult {
  double loss_sum = 0.0;
  UnitBuffers gradients;
};

/// Device memory is poisoned (NaN), so what a kernel forgets to write shows.
class EngineHarness {
 public:
  EngineHarness(const ModelDescription& model, const ModelLayout& layout, const gpu::EngineOptions& options,
                int compute_threads = 1);

  /// Rounds the parameters to the compute dtype, puts them on the device and prepares every unit for both passes.
  void set_parameters(const UnitBuffers& parameters);

  /// [rows * sequence_length, vocab_size] of one micro-batch.
  std::vector<float> logits(std::span<const int32_t> tokens);
  /// Sum over the counting tokens of one micro-batch, without a backward pass.
  double loss_sum(std::span<const int32_t> tokens, std::span<const int32_t> labels);
  /// Forward and backward over tokens.size() / (micro_batch_size * sequence_length) micro-batches; gradients are those
  /// of gradient_scale * loss_sum, accumulated on the device.
  StepResult step(std::span<const int32_t> tokens, std::span<const int32_t> labels, float gradient_scale,
                  Activations activations);

 private:
  size_t micro_batch_tokens() const {
    return static_cast<size_t>(options_.micro_batch_size * options_.sequence_length);
  }
  int head() const { return static_cast<int>(layout_.units.size()) - 1; }
  void upload(void* device, const void* host, uint64_t bytes);
  void download(void* host, const void* device, uint64_t bytes);
  void forward(std::span<const int32_t> tokens, bool keep_saved);
  gpu::Engine::HeadBuffers head_buffers(gpu::Pass pass) const;

  const ModelDescription& model_;
  const ModelLayout& layout_;
  gpu::EngineOptions options_;
  std::unique_ptr<gpu::HostDevice> device_;
  std::unique_ptr<gpu::Stream> stream_;
  std::unique_ptr<gpu::Engine> engine_;
  std::vector<gpu::DeviceBuffer> parameters_, gradients_, prepared_forward_, prepared_backward_;  // a unit each
  std::vector<gpu::DeviceBuffer> hidden_, saved_;  // the input of each block and of the head; what each block keeps
  gpu::DeviceBuffer d_hidden_, workspace_, tokens_, labels_, loss_, logits_;
};

}  // namespace strata::parity
