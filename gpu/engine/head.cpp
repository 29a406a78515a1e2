#include "gpu/engine/head.hpp"

#include <algorithm>

namespace strata::gpu {
namespace {

/// Of the fp32 logits of one chunk: large enough for the products to run at full speed, small beside the model.
constexpr int64_t kLogitsBytes = 128 << 20;

}  // namespace

Embedding::Embedding(Device& device, const ModelDescription& model, const ModelLayout& layout, const EngineOptions& options)
    : device_(&device), dtype_(options.compute), tokens_(options.micro_batch_size * options.sequence_length),
      sequence_length_(options.sequence_length), hidden_size_(model.hidden_size), unit_(layout.units.front(), options.compute) {}

void Embedding::forward(Stream& stream, const void* params, const int32_t* tokens, void* hidden) const {
  device_->rows().gather(stream, dtype_, tokens_, hidden_size_, tokens, unit_.parameter(params, TensorRole::token_embedding),
                         unit_.optional_parameter(params, TensorRole::position_embedding), sequence_length_, hidden);
}

void Embedding::backward(Stream& stream, const int32_t* tokens, const void* d_hidden, float* gradients, bool accumulate) const {
  if (!accumulate) device_->fill(stream, gradients, 0, unit_.layout().padded_elements * sizeof(float));
  float* const positions =
      unit_.has(TensorRole::position_embedding) ? unit_.gradient(gradients, TensorRole::position_embedding) : nullptr;
  device_->rows().scatter_add(stream, dtype_, tokens_, hidden_size_, tokens, d_hidden,
                              unit_.gradient(gradients, TensorRole::token_embedding), positions, sequence_length_);
}

Head::Head(Device& device, const ModelDescription& model, const ModelLayout& layout, const EngineOptions& options)
    : device_(&device),
      rows_(&device.rows()),
      dtype_(options.compute),
      tied_(model.tied_head),
      tokens_(options.micro_batch_size * options.sequence_length),
      hidden_size_(model.hidden_size),
      vocabulary_(model.vocab_size),
      chunk_(chunk_rows(model.vocab_size, tokens_)),
      unit_(layout.units.back(), options.compute),
      embedding_(layout.units.front(), options.compute),
      norm_(device, model, dtype_, TensorRole::final_norm_weight, TensorRole::final_norm_bias),
      projection_(make_projection(device, options)) {
  flops_ = 2.0 * static_cast<double>(tokens_) * static_cast<double>(hidden_size_) * static_cast<double>(vocabulary_);
  Region prepared;
  projection_.plan_forward_part(prepared);
  prepared_forward_bytes_ = prepared.bytes();
  projection_.plan_backward_part(prepared);
  prepared_bytes_ = prepared.bytes();

  const auto rows = static_cast<uint64_t>(chunk_);
  Region region;
  workspace_.normed = region.take(row_offset(chunk_));
  workspace_.d_normed = region.take(row_offset(chunk_));
  workspace_.statistics = region.take(norm_.statistics_bytes(chunk_));
  workspace_.logits = region.take(rows * static_cast<uint64_t>(vocabulary_) * sizeof(float));
  workspace_.d_logits = dtype_ == DType::f32 ? workspace_.logits
                                             : region.take(rows * static_cast<uint64_t>(vocabulary_) * size_bytes(dtype_));
  workspace_.losses = region.take(rows * sizeof(double));
  workspace_.kernel = region.take(projection_.workspace_bytes());
  workspace_.reduction = region.take(norm_.scratch_bytes(chunk_));
  workspace_.bytes = region.bytes();
}

int64_t Head::chunk_rows(int64_t vocabulary, int64_t tokens) {
  const int64_t most = std::max<int64_t>(16, kLogitsBytes / (vocabulary * static_cast<int64_t>(sizeof(float))));
  const int64_t chunks = (tokens + most - 1) / most;
  if (tokens % chunks == 0) return tokens / chunks;
  // Chunks of one size where it can be had: a multiple of 16 rows, and a tail.
  const int64_t even = (tokens + chunks - 1) / chunks;
  return std::min(tokens, (even + 15) / 16 * 16);
}

Projection Head::make_projection(Device& device, const EngineOptions& options) const {
  LinearSpec spec;
  spec.dtype = options.compute;
  spec.output_dtype = DType::f32;
  spec.tokens = chunk_;
  spec.tail_tokens = tokens_ % chunk_;
  spec.inputs = hidden_size_;
  spec.outputs = vocabulary_;
  spec.order = WeightOrder::output_major;  // of the token embedding, too
  return Projection(device, spec, {tied_ ? TensorRole::token_embedding : TensorRole::head_weight, std::nullopt});
}

void Head::prepare(Stream& stream, Pass pass, const void* params, const void* embedding_params, void* prepared) const {
  projection_.prepare(stream, pass == Pass::backward, weight_unit(), tied_ ? embedding_params : params, prepared);
}

template <typename Body>
void Head::for_each_chunk(Body&& body) const {
  for (int64_t first = 0; first < tokens_; first += chunk_) body(Chunk{first, std::min(chunk_, tokens_ - first)});
}

void Head::forward_chunk(Stream& stream, const Engine::HeadBuffers& buffers, Chunk chunk, float* logits) const {
  void* const normed = at(buffers.workspace, workspace_.normed);
  norm_.forward(stream, chunk.count, unit_, buffers.params, at(buffers.hidden, row_offset(chunk.first)), normed,
                at<float>(buffers.workspace, workspace_.statistics));
  projection_.forward(stream, chunk.count, weight_unit(), weight_params(buffers), buffers.prepared, normed, nullptr, logits,
                      at(buffers.workspace, workspace_.kernel));
}

void Head::loss(Stream& stream, const Engine::HeadBuffers& buffers, double* loss_sum) const {
  float* const logits = at<float>(buffers.workspace, workspace_.logits);
  double* const losses = at<double>(buffers.workspace, workspace_.losses);
  for_each_chunk([&](Chunk chunk) {
    forward_chunk(stream, buffers, chunk, logits);
    rows_->cross_entropy(stream, DType::f32, chunk.count, vocabulary_, logits, buffers.labels + chunk.first, 0.0f, losses, dtype_,
                         nullptr);
    rows_->sum_in_order(stream, chunk.count, losses, loss_sum, chunk.first > 0);
  });
}

void Head::loss_backward(Stream& stream, const Engine::HeadBuffers& buffers, float gradient_scale, double* loss_sum, void* d_hidden,
                         float* gradients, float* embedding_gradients, bool accumulate) const {
  void* const workspace = buffers.workspace;
  float* const logits = at<float>(workspace, workspace_.logits);
  void* const d_logits = at(workspace, workspace_.d_logits);
  void* const d_normed = at(workspace, workspace_.d_normed);
  void* const kernel = at(workspace, workspace_.kernel);
  void* const reduction = at(workspace, workspace_.reduction);
  double* const losses = at<double>(workspace, workspace_.losses);
  float* const weight_gradients = tied_ ? embedding_gradients : gradients;

  if (!accumulate) {
    unit_.zero_gaps(*device_, stream, gradients);
    if (tied_) {
      embedding_.zero_gaps(*device_, stream, embedding_gradients);
      if (embedding_.has(TensorRole::position_embedding)) {
        device_->fill(stream, embedding_.gradient(embedding_gradients, TensorRole::position_embedding), 0,
                      embedding_.elements(TensorRole::position_embedding) * sizeof(float));
      }
    }
  }
  for_each_chunk([&](Chunk chunk) {
    const bool add = accumulate || chunk.first > 0;
    forward_chunk(stream, buffers, chunk, logits);
    rows_->cross_entropy(stream, DType::f32, chunk.count, vocabulary_, logits, buffers.labels + chunk.first, gradient_scale, losses,
                         dtype_, d_logits);
    rows_->sum_in_order(stream, chunk.count, losses, loss_sum, chunk.first > 0);
    projection_.backward_weight(stream, chunk.count, weight_unit(), at(workspace, workspace_.normed), d_logits, weight_gradients, add,
                                kernel, reduction);
    projection_.backward_input(stream, chunk.count, weight_unit(), weight_params(buffers), buffers.prepared, d_logits, d_normed,
                               kernel);
    norm_.backward(stream, chunk.count, unit_, buffers.params, at(buffers.hidden, row_offset(chunk.first)),
                   at<float>(workspace, workspace_.statistics), d_normed, at(d_hidden, row_offset(chunk.first)), false, gradients, add,
                   reduction);
  });
}

void Head::logits(Stream& stream, const Engine::HeadBuffers& buffers, float* logits) const {
  for_each_chunk([&](Chunk chunk) { forward_chunk(stream, buffers, chunk, logits + chunk.first * vocabulary_); });
}

}  // namespace strata::gpu
