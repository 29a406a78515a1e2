// The engine: checks its options, takes its tables and hands each call to the part that serves it.
#include "gpu/engine.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gpu/engine/block.hpp"
#include "gpu/engine/head.hpp"

namespace strata::gpu {
namespace {

/// With linear and dynamic RoPE scaling a model's positions are those before scaling: the files of such models keep them.
int64_t longest_sequence(const ModelDescription& model) {
  const bool scaled = model.rope.scaling == RopeConfig::Scaling::linear || model.rope.scaling == RopeConfig::Scaling::dynamic;
  const double longest = static_cast<double>(model.max_positions) * (scaled ? model.rope.factor : 1.0);
  return static_cast<int64_t>(longest);
}

void check_options(const ModelDescription& model, const ModelLayout& layout, const EngineOptions& options) {
  STRATA_CHECK(layout.units.size() == static_cast<size_t>(model.layers) + 2, "{} units for {} layers", layout.units.size(),
               model.layers);
  if (options.micro_batch_size < 1 || options.sequence_length < 1) {
    throw Error(ErrorCode::invalid_configuration,
                fmt::format("a micro-batch of {} sequences of {} tokens", options.micro_batch_size, options.sequence_length),
                "batch.micro_batch_size, data.sequence_length", "give both a positive value");
  }
  if (options.sequence_length > longest_sequence(model)) {
    throw Error(ErrorCode::invalid_configuration,
                fmt::format("sequences of {} tokens are longer than the {} positions of the model", options.sequence_length,
                            longest_sequence(model)),
                "data.sequence_length", fmt::format("at most {}", longest_sequence(model)));
  }
}

class TransformerEngine final : public Engine {
 public:
  TransformerEngine(Device& device, const ModelDescription& model, const ModelLayout& layout, const EngineOptions& options,
                    DeviceBuffer tables, RopeTables rope)
      : layout_(layout), tables_(std::move(tables)), hidden_bytes_(static_cast<uint64_t>(options.micro_batch_size * options.sequence_length *
                                                                            model.hidden_size) * size_bytes(options.compute)),
        embedding_(device, model, layout_, options), block_(device, model, layout_, options, rope),
        head_(device, model, layout_, options) {}

  uint64_t hidden_bytes() const override { return hidden_bytes_; }
  uint64_t saved_bytes() const override { return block_.saved_bytes(); }
  uint64_t workspace_bytes() const override { return std::max(block_.workspace_bytes(), head_.workspace_bytes()); }
  uint64_t table_bytes() const override { return tables_.bytes(); }

  uint64_t prepared_bytes(int unit, Pass pass) const override {
    switch (kind(unit)) {
      case UnitKind::embedding: return 0;
      case UnitKind::block: return block_.prepared_bytes(pass);
      case UnitKind::head: return head_.prepared_bytes(pass);
    }
    return 0;
  }
  double forward_flops(int unit) const override {
    switch (kind(unit)) {
      case UnitKind::embedding: return 0.0;
      case UnitKind::block: return block_.forward_flops(layer(unit));
      case UnitKind::head: return head_.forward_flops();
    }
    return 0.0;
  }
  double backward_flops(int unit) const override {
    switch (kind(unit)) {
      case UnitKind::embedding: return 0.0;
      case UnitKind::block: return block_.backward_flops(layer(unit));
      case UnitKind::head: return head_.backward_flops();
    }
    return 0.0;
  }

  void prepare(Stream& stream, int unit, Pass pass, const void* params, const void* embedding_params, void* prepared) override {
    switch (kind(unit)) {
      case UnitKind::embedding: return;
      case UnitKind::block: return block_.prepare(stream, layer(unit), pass, params, prepared);
      case UnitKind::head: return head_.prepare(stream, pass, params, embedding_params, prepared);
    }
  }

  void embedding_forward(Stream& stream, const void* params, const int32_t* tokens, void* hidden) override {
    embedding_.forward(stream, params, tokens, hidden);
  }
  void embedding_backward(Stream& stream, const int32_t* tokens, const void* d_hidden, float* gradients, Accumulate accumulate,
                          void*) override {
    embedding_.backward(stream, tokens, d_hidden, gradients, accumulate == Accumulate::add);
  }

  void block_forward(Stream& stream, int unit, const void* params, const void* prepared, const void* hidden_in, void* hidden_out,
                     void* saved, void* workspace) override {
    block_.forward(stream, layer(unit), params, prepared, hidden_in, hidden_out, saved, workspace);
  }
  void block_backward(Stream& stream, int unit, const void* params, const void* prepared, const void* hidden_in, const void* saved,
                      void* d_hidden, float* gradients, Accumulate accumulate, void* workspace) override {
    block_.backward(stream, layer(unit), params, prepared, hidden_in, saved, d_hidden, gradients, accumulate == Accumulate::add,
                    workspace);
  }

  void head_loss(Stream& stream, const HeadBuffers& buffers, double* loss_sum) override { head_.loss(stream, buffers, loss_sum); }
  void head_loss_backward(Stream& stream, const HeadBuffers& buffers, float gradient_scale, double* loss_sum, void* d_hidden,
                          float* gradients, float* embedding_gradients, Accumulate accumulate) override {
    head_.loss_backward(stream, buffers, gradient_scale, loss_sum, d_hidden, gradients, embedding_gradients,
                        accumulate == Accumulate::add);
  }
  void head_logits(Stream& stream, const HeadBuffers& buffers, float* logits) override { head_.logits(stream, buffers, logits); }

 private:
  UnitKind kind(int unit) const {
    STRATA_CHECK(unit >= 0 && static_cast<size_t>(unit) < layout_.units.size(), "unit {} of {}", unit, layout_.units.size());
    return layout_.units[static_cast<size_t>(unit)].kind;
  }
  int64_t layer(int unit) const {
    STRATA_CHECK(kind(unit) == UnitKind::block, "unit {} is no block", unit);
    return unit - 1;
  }

  const ModelLayout layout_;  // the parts point into it
  DeviceBuffer tables_;
  uint64_t hidden_bytes_;
  Embedding embedding_;
  Block block_;
  Head head_;
};

/// Cosines, then sines, of all positions.
std::vector<float> rope_tables(const ModelDescription& model, int64_t sequence_length) {
  const RopeFrequencies frequencies = rope_frequencies(model, sequence_length);
  const size_t half = frequencies.inverse_frequency.size();
  STRATA_CHECK(static_cast<int64_t>(half) * 2 == model.head_dim, "{} frequencies for heads of {}", half, model.head_dim);
  const auto length = static_cast<size_t>(sequence_length);
  std::vector<float> tables(2 * length * half);
  for (size_t position = 0; position < length; ++position) {
    for (size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * frequencies.inverse_frequency[i];
      tables[position * half + i] = static_cast<float>(std::cos(angle) * frequencies.attention_factor);
      tables[(length + position) * half + i] = static_cast<float>(std::sin(angle) * frequencies.attention_factor);
    }
  }
  return tables;
}

}  // namespace

std::unique_ptr<Engine> Engine::create(Device& device, const ModelDescription& model, const ModelLayout& layout,
                                       const EngineOptions& options) {
  check_options(model, layout, options);
  DeviceBuffer buffer;
  RopeTables rope;
  if (model.family == Family::llama) {
    const std::vector<float> tables = rope_tables(model, options.sequence_length);
    buffer = device.allocate(tables.size() * sizeof(float));
    const auto stream = device.create_stream(Device::StreamKind::copy, "engine tables");
    device.copy(*stream, buffer.data(), tables.data(), buffer.bytes(), CopyDirection::host_to_device);
    device.synchronize(*stream, std::chrono::minutes(1));
    rope.cosines = reinterpret_cast<const float*>(buffer.data());
    rope.sines = rope.cosines + tables.size() / 2;
  }
  return std::make_unique<TransformerEngine>(device, model, layout, options, std::move(buffer), rope);
}

}  // namespace strata::gpu
