#include "tests/parity/engine_harness.hpp"

#include <chrono>
#include <cstring>

namespace strata::parity {
namespace {

constexpr std::chrono::seconds kDeadline{60};

std::vector<std::byte> in_dtype(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * size_bytes(dtype));
  if (dtype == DType::f32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = half_from_float(dtype, values[i]);
    std::memcpy(bytes.data() + 2 * i, &half, 2);
  }
  return bytes;
}

float* floats(const gpu::DeviceBuffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }
int32_t* int32s(const gpu::DeviceBuffer& buffer) { return reinterpret_cast<int32_t*>(buffer.data()); }
double* doubles(const gpu::DeviceBuffer& buffer) { return reinterpret_cast<double*>(buffer.data()); }

}  // namespace

EngineHarness::EngineHarness(const ModelDescription& model, const ModelLayout& layout,
                             const gpu::EngineOptions& options, int compute_threads)
    : model_(model), layout_(layout), options_(options) {
  device_ = gpu::HostDevice::create({.memory_bytes = 1ull << 30, .compute_threads = compute_threads, .poison = true});
  stream_ = device_->create_stream(gpu::Device::StreamKind::compute, "compute");
  engine_ = gpu::Engine::create(*device_, model, layout, options);
  const auto allocate = [this](uint64_t bytes) { return bytes == 0 ? gpu::DeviceBuffer() : device_->allocate(bytes); };
  for (int unit = 0; unit <= head(); ++unit) {
    const uint64_t elements = layout.units[unit].padded_elements;
    parameters_.push_back(allocate(elements * size_bytes(options.compute)));
    gradients_.push_back(allocate(elements * sizeof(float)));
    prepared_forward_.push_back(allocate(engine_->prepared_bytes(unit, gpu::Pass::forward)));
    prepared_backward_.push_back(allocate(engine_->prepared_bytes(unit, gpu::Pass::backward)));
  }
  for (int64_t i = 0; i <= model.layers; ++i) hidden_.push_back(allocate(engine_->hidden_bytes()));
  for (int64_t i = 0; i < model.layers; ++i) saved_.push_back(allocate(engine_->saved_bytes()));
  d_hidden_ = allocate(engine_->hidden_bytes());
  workspace_ = allocate(engine_->workspace_bytes());
  tokens_ = allocate(micro_batch_tokens() * sizeof(int32_t));
  labels_ = allocate(micro_batch_tokens() * sizeof(int32_t));
  loss_ = allocate(sizeof(double));
  logits_ = allocate(micro_batch_tokens() * static_cast<uint64_t>(model.vocab_size) * sizeof(float));
}

void EngineHarness::upload(void* device, const void* host, uint64_t bytes) {
  device_->copy(*stream_, device, host, bytes, gpu::CopyDirection::host_to_device);
  device_->synchronize(*stream_, kDeadline);
}

void EngineHarness::download(void* host, const void* device, uint64_t bytes) {
  device_->copy(*stream_, host, device, bytes, gpu::CopyDirection::device_to_host);
  device_->synchronize(*stream_, kDeadline);
}

void EngineHarness::set_parameters(const UnitBuffers& parameters) {
  for (int unit = 0; unit <= head(); ++unit) {
    const auto bytes = in_dtype(parameters.at(unit), options_.compute);
    STRATA_CHECK(bytes.size() == parameters_[unit].bytes(), "unit {} has {} bytes", unit, bytes.size());
    upload(parameters_[unit].data(), bytes.data(), bytes.size());
  }
  for (int unit = 0; unit <= head(); ++unit) {
    const void* embedding = model_.tied_head ? parameters_[0].data() : nullptr;
    engine_->prepare(*stream_, unit, gpu::Pass::forward, parameters_[unit].data(), embedding,
                     prepared_forward_[unit].data());
    engine_->prepare(*stream_, unit, gpu::Pass::backward, parameters_[unit].data(), embedding,
                     prepared_backward_[unit].data());
  }
  device_->synchronize(*stream_, kDeadline);
}

void EngineHarness::forward(std::span<const int32_t> tokens, bool keep_saved) {
  STRATA_CHECK(tokens.size() == micro_batch_tokens(), "{} tokens", tokens.size());
  upload(tokens_.data(), tokens.data(), tokens.size_bytes());
  engine_->embedding_forward(*stream_, parameters_[0].data(), int32s(tokens_), hidden_[0].data());
  for (int block = 0; block < model_.layers; ++block) {
    engine_->block_forward(*stream_, block + 1, parameters_[block + 1].data(), prepared_forward_[block + 1].data(),
                           hidden_[block].data(), hidden_[block + 1].data(), saved_[keep_saved ? block : 0].data(),
                           workspace_.data());
  }
}

gpu::Engine::HeadBuffers EngineHarness::head_buffers(gpu::Pass pass) const {
  const auto& prepared = pass == gpu::Pass::forward ? prepared_forward_ : prepared_backward_;
  return {.params = parameters_.back().data(),
          .embedding_params = model_.tied_head ? parameters_[0].data() : nullptr,
          .prepared = prepared.back().data(),
          .hidden = hidden_.back().data(),
          .labels = int32s(labels_),
          .workspace = workspace_.data()};
}

std::vector<float> EngineHarness::logits(std::span<const int32_t> tokens) {
  forward(tokens, false);
  engine_->head_logits(*stream_, head_buffers(gpu::Pass::forward), floats(logits_));
  std::vector<float> result(logits_.bytes() / sizeof(float));
  download(result.data(), logits_.data(), logits_.bytes());
  return result;
}

double EngineHarness::loss_sum(std::span<const int32_t> tokens, std::span<const int32_t> labels) {
  forward(tokens, false);
  upload(labels_.data(), labels.data(), labels.size_bytes());
  engine_->head_loss(*stream_, head_buffers(gpu::Pass::forward), doubles(loss_));
  double sum = 0.0;
  download(&sum, loss_.data(), sizeof(sum));
  return sum;
}

StepResult EngineHarness::step(std::span<const int32_t> tokens, std::span<const int32_t> labels, float gradient_scale,
                               Activations activations) {
  const size_t count = micro_batch_tokens();
  STRATA_CHECK(tokens.size() == labels.size() && tokens.size() % count == 0, "{} tokens, {} labels", tokens.size(),
               labels.size());
  StepResult result;
  for (size_t first = 0; first < tokens.size(); first += count) {
    const auto accumulate = first == 0 ? gpu::Accumulate::first : gpu::Accumulate::add;
    forward(tokens.subspan(first, count), activations == Activations::keep);
    upload(labels_.data(), labels.data() + first, count * sizeof(int32_t));
    engine_->head_loss_backward(*stream_, head_buffers(gpu::Pass::backward), gradient_scale, doubles(loss_),
                                d_hidden_.data(), floats(gradients_.back()),
                                model_.tied_head ? floats(gradients_[0]) : nullptr, accumulate);
    for (int block = static_cast<int>(model_.layers) - 1; block >= 0; --block) {
      const int unit = block + 1;
      void* saved = saved_[activations == Activations::keep ? block : 0].data();
      if (activations == Activations::recompute) {
        engine_->block_forward(*stream_, unit, parameters_[unit].data(), prepared_backward_[unit].data(),
                               hidden_[block].data(), nullptr, saved, workspace_.data());
      }
      engine_->block_backward(*stream_, unit, parameters_[unit].data(), prepared_backward_[unit].data(),
                              hidden_[block].data(), saved, d_hidden_.data(), floats(gradients_[unit]), accumulate,
                              workspace_.data());
    }
    // A tied head has written the embedding's gradient already.
    engine_->embedding_backward(*stream_, int32s(tokens_), d_hidden_.data(), floats(gradients_[0]),
                                model_.tied_head ? gpu::Accumulate::add : accumulate, workspace_.data());
    double sum = 0.0;
    download(&sum, loss_.data(), sizeof(sum));
    result.loss_sum += sum;
  }
  for (const auto& buffer : gradients_) {
    result.gradients.emplace_back(buffer.bytes() / sizeof(float));
    download(result.gradients.back().data(), buffer.data(), buffer.bytes());
  }
  return result;
}

}  // namespace strata::parity
