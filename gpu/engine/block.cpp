#include "gpu/engine/block.hpp"

#include <algorithm>

namespace strata::gpu {
namespace {

std::vector<UnitTensors> block_units(const ModelLayout& layout, DType compute) {
  std::vector<UnitTensors> units;
  for (const UnitLayout& unit : layout.units) {
    if (unit.kind == UnitKind::block) units.emplace_back(unit, compute);
  }
  STRATA_CHECK(!units.empty(), "a layout of {} units has no block", layout.units.size());
  return units;
}

bool gated(const ModelDescription& model) { return model.family == Family::llama; }

LinearSpec linear(const ModelDescription& model, const EngineOptions& options, int64_t inputs, int64_t outputs) {
  LinearSpec spec;
  spec.dtype = spec.output_dtype = options.compute;
  spec.tokens = options.micro_batch_size * options.sequence_length;
  spec.inputs = inputs;
  spec.outputs = outputs;
  spec.order = model.family == Family::gpt2 ? WeightOrder::input_major : WeightOrder::output_major;
  return spec;
}

/// With a bias where the unit has one.
Projection projection(Device& device, const UnitTensors& unit, LinearSpec spec, TensorRole weight, TensorRole bias,
                      bool residual = false) {
  spec.bias = unit.has(bias);
  spec.residual = residual;
  return Projection(device, spec, {weight, spec.bias ? std::optional(bias) : std::nullopt});
}

/// Query-key pairs that a head of one sequence looks at.
double attended_pairs(int64_t length, int64_t window) {
  const double reach = static_cast<double>(window == 0 ? length : std::min(window, length));
  return reach * (reach + 1) / 2 + (static_cast<double>(length) - reach) * reach;
}

}  // namespace

Block::Block(Device& device, const ModelDescription& model, const ModelLayout& layout, const EngineOptions& options, RopeTables rope)
    : device_(&device),
      rows_(&device.rows()),
      model_(model),
      dtype_(options.compute),
      sequences_(options.micro_batch_size),
      sequence_length_(options.sequence_length),
      tokens_(sequences_ * sequence_length_),
      qkv_columns_(model.query_size() + 2 * model.kv_size()),
      up_columns_((gated(model) ? 2 : 1) * model.intermediate_size),
      rope_(rope),
      units_(block_units(layout, options.compute)),
      attention_norm_(device, model, dtype_, TensorRole::attention_norm_weight, TensorRole::attention_norm_bias),
      mlp_norm_(device, model, dtype_, TensorRole::mlp_norm_weight, TensorRole::mlp_norm_bias),
      qkv_(projection(device, unit(0), linear(model, options, model.hidden_size, qkv_columns_),
                      gated(model) ? TensorRole::q_weight : TensorRole::qkv_weight,
                      gated(model) ? TensorRole::q_bias : TensorRole::qkv_bias)),
      attention_output_(projection(device, unit(0), linear(model, options, model.query_size(), model.hidden_size),
                                   TensorRole::attention_output_weight, TensorRole::attention_output_bias, true)),
      up_(projection(device, unit(0), linear(model, options, model.hidden_size, up_columns_),
                     gated(model) ? TensorRole::gate_weight : TensorRole::up_weight,
                     gated(model) ? TensorRole::gate_bias : TensorRole::up_bias)),
      down_(projection(device, unit(0), linear(model, options, model.intermediate_size, model.hidden_size), TensorRole::down_weight,
                       TensorRole::down_bias, true)) {
  Region prepared;
  for (Projection* projection : {&qkv_, &attention_output_, &up_, &down_}) projection->plan_forward_part(prepared);
  prepared_forward_bytes_ = prepared.bytes();
  for (Projection* projection : {&qkv_, &attention_output_, &up_, &down_}) projection->plan_backward_part(prepared);
  prepared_bytes_ = prepared.bytes();
  plan_buffers();
}

uint64_t Block::activation_bytes(int64_t columns) const { return static_cast<uint64_t>(tokens_ * columns) * size_bytes(dtype_); }

void Block::plan_buffers() {
  Region saved;
  saved_.qkv = saved.take(activation_bytes(qkv_columns_));
  saved_.log_sum_exp = saved.take(static_cast<uint64_t>(tokens_ * model_.heads) * sizeof(float));
  saved_.attention = saved.take(activation_bytes(model_.query_size()));
  saved_.middle = saved.take(activation_bytes(model_.hidden_size));
  saved_.pre_activation = saved.take(activation_bytes(up_columns_));
  saved_.bytes = saved.bytes();

  uint64_t kernel_bytes = 0, reduction_bytes = attention_norm_.scratch_bytes(tokens_);
  for (const Projection* projection : {&qkv_, &attention_output_, &up_, &down_}) {
    kernel_bytes = std::max(kernel_bytes, projection->workspace_bytes());
    reduction_bytes = std::max(reduction_bytes, projection->scratch_bytes());
  }
  for (int64_t layer = 0; layer < model_.layers; ++layer) {
    kernel_bytes = std::max(kernel_bytes, device_->attention().workspace_bytes(attention_shape(layer)));
  }
  uint64_t statistics_bytes = attention_norm_.statistics_bytes(tokens_);
  if (model_.qk_norm) {
    reduction_bytes = std::max(reduction_bytes, rows_->reduction_scratch_bytes(tokens_, model_.head_dim));
    statistics_bytes = std::max(statistics_bytes, static_cast<uint64_t>(tokens_ * (model_.heads + model_.kv_heads)) * sizeof(float));
  }

  Region common;
  workspace_.normed = common.take(activation_bytes(model_.hidden_size));
  workspace_.d_normed = common.take(activation_bytes(model_.hidden_size));
  workspace_.statistics = common.take(statistics_bytes);
  workspace_.kernel = common.take(kernel_bytes);
  workspace_.reduction = common.take(reduction_bytes);
  Region mlp = common;
  workspace_.activated = mlp.take(activation_bytes(model_.intermediate_size));
  workspace_.d_activated = mlp.take(activation_bytes(model_.intermediate_size));
  // Without a gate the gradient passes through the activation in place.
  workspace_.d_pre_activation = gated(model_) ? mlp.take(activation_bytes(up_columns_)) : workspace_.d_activated;
  Region attention = common;
  workspace_.d_attention = attention.take(activation_bytes(model_.query_size()));
  workspace_.d_qkv = attention.take(activation_bytes(qkv_columns_));
  workspace_.rotated = model_.qk_norm ? attention.take(activation_bytes(qkv_columns_)) : 0;
  mlp.cover(attention);
  workspace_.bytes = mlp.bytes();
}

AttentionShape Block::attention_shape(int64_t layer) const {
  AttentionShape shape;
  shape.dtype = dtype_;
  shape.sequences = sequences_;
  shape.sequence_length = sequence_length_;
  shape.heads = model_.heads;
  shape.kv_heads = model_.kv_heads;
  shape.head_dim = model_.head_dim;
  const auto index = static_cast<size_t>(layer);
  const int64_t window = index < model_.sliding_window.size() ? model_.sliding_window[index] : 0;
  shape.window = window >= sequence_length_ ? 0 : window;
  shape.scale = static_cast<float>(model_.attention_scale);
  return shape;
}

double Block::forward_flops(int64_t layer) const {
  const double pairs = attended_pairs(sequence_length_, attention_shape(layer).window) * static_cast<double>(sequences_ * model_.heads);
  const double attention = 4.0 * pairs * static_cast<double>(model_.head_dim);
  return qkv_.flops() + attention_output_.flops() + up_.flops() + down_.flops() + attention;
}

double Block::backward_flops(int64_t layer) const {
  const double pairs = attended_pairs(sequence_length_, attention_shape(layer).window) * static_cast<double>(sequences_ * model_.heads);
  // Scores again, and the gradients of probabilities, q, k and v.
  const double attention = 10.0 * pairs * static_cast<double>(model_.head_dim);
  return 2.0 * (qkv_.flops() + attention_output_.flops() + up_.flops() + down_.flops()) + attention;
}

void Block::prepare(Stream& stream, int64_t layer, Pass pass, const void* params, void* prepared) const {
  for (const Projection* projection : {&qkv_, &attention_output_, &up_, &down_}) {
    projection->prepare(stream, pass == Pass::backward, unit(layer), params, prepared);
  }
}

void Block::rotate(Stream& stream, void* qkv, bool inverse) const {
  if (rope_.cosines == nullptr) return;
  // The key heads follow the query heads, so that one call turns both.
  const int64_t heads = model_.heads + model_.kv_heads;
  rows_->rope(stream, dtype_, {tokens_, heads * model_.head_dim, qkv_columns_}, qkv, heads, model_.head_dim, rope_.cosines,
              rope_.sines, sequence_length_, inverse);
}

const void* Block::rotated_qkv(Stream& stream, const UnitTensors& unit, const void* params, const void* saved, void* workspace) const {
  const void* const qkv = at(saved, saved_.qkv);
  if (!model_.qk_norm) return qkv;
  void* const rotated = at(workspace, workspace_.rotated);
  device_->copy(stream, rotated, qkv, activation_bytes(qkv_columns_), CopyDirection::device_to_device);
  for (int64_t head = 0; head < model_.heads + model_.kv_heads; ++head) {
    const auto role = head < model_.heads ? TensorRole::q_norm_weight : TensorRole::k_norm_weight;
    void* const x = at(rotated, static_cast<uint64_t>(head * model_.head_dim) * size_bytes(dtype_));
    rows_->rms_norm(stream, dtype_, {tokens_, model_.head_dim, qkv_columns_}, x, unit.parameter(params, role),
                    static_cast<float>(model_.norm_epsilon), x, qkv_columns_,
                    at<float>(workspace, workspace_.statistics) + head * tokens_);
  }
  rotate(stream, rotated, false);
  return rotated;
}

void Block::activate(Stream& stream, const void* pre_activation, void* activated) const {
  if (gated(model_)) {
    rows_->gated_activation(stream, dtype_, model_.activation, tokens_, model_.intermediate_size, pre_activation, activated);
  } else {
    rows_->activation(stream, dtype_, model_.activation, tokens_ * model_.intermediate_size, pre_activation, activated);
  }
}

void Block::forward(Stream& stream, int64_t layer, const void* params, const void* prepared, const void* hidden_in, void* hidden_out,
                    void* saved, void* workspace) const {
  const UnitTensors& unit = this->unit(layer);
  void* const normed = at(workspace, workspace_.normed);
  void* const kernel = at(workspace, workspace_.kernel);
  float* const statistics = at<float>(workspace, workspace_.statistics);
  void* const qkv = at(saved, saved_.qkv);
  void* const attention = at(saved, saved_.attention);
  void* const middle = at(saved, saved_.middle);
  void* const pre_activation = at(saved, saved_.pre_activation);
  void* const activated = at(workspace, workspace_.activated);

  attention_norm_.forward(stream, tokens_, unit, params, hidden_in, normed, statistics);
  qkv_.forward(stream, tokens_, unit, params, prepared, normed, nullptr, qkv, kernel);
  if (!model_.qk_norm) rotate(stream, qkv, false);
  device_->attention().forward(stream, attention_shape(layer), rotated_qkv(stream, unit, params, saved, workspace), attention,
                               at<float>(saved, saved_.log_sum_exp), kernel);
  attention_output_.forward(stream, tokens_, unit, params, prepared, attention, hidden_in, middle, kernel);

  mlp_norm_.forward(stream, tokens_, unit, params, middle, normed, statistics);
  up_.forward(stream, tokens_, unit, params, prepared, normed, nullptr, pre_activation, kernel);
  if (hidden_out == nullptr) return;
  activate(stream, pre_activation, activated);
  down_.forward(stream, tokens_, unit, params, prepared, activated, middle, hidden_out, kernel);
}

void Block::backward(Stream& stream, int64_t layer, const void* params, const void* prepared, const void* hidden_in,
                     const void* saved, void* d_hidden, float* gradients, bool accumulate, void* workspace) const {
  if (!accumulate) unit(layer).zero_gaps(*device_, stream, gradients);
  backward_mlp(stream, unit(layer), params, prepared, saved, d_hidden, gradients, accumulate, workspace);
  backward_attention(stream, layer, params, prepared, hidden_in, saved, d_hidden, gradients, accumulate, workspace);
}

void Block::backward_mlp(Stream& stream, const UnitTensors& unit, const void* params, const void* prepared, const void* saved,
                         void* d_hidden, float* gradients, bool accumulate, void* workspace) const {
  const void* const middle = at(saved, saved_.middle);
  const void* const pre_activation = at(saved, saved_.pre_activation);
  void* const normed = at(workspace, workspace_.normed);
  void* const d_normed = at(workspace, workspace_.d_normed);
  float* const statistics = at<float>(workspace, workspace_.statistics);
  void* const kernel = at(workspace, workspace_.kernel);
  void* const reduction = at(workspace, workspace_.reduction);
  void* const activated = at(workspace, workspace_.activated);
  void* const d_activated = at(workspace, workspace_.d_activated);
  void* const d_pre_activation = at(workspace, workspace_.d_pre_activation);

  down_.backward_input(stream, tokens_, unit, params, prepared, d_hidden, d_activated, kernel);
  if (gated(model_)) {
    rows_->gated_activation_backward(stream, dtype_, model_.activation, tokens_, model_.intermediate_size, pre_activation, d_activated,
                                     activated, d_pre_activation);
  } else {
    rows_->activation_backward(stream, dtype_, model_.activation, tokens_ * model_.intermediate_size, pre_activation, d_activated,
                               activated, d_pre_activation);
  }
  down_.backward_weight(stream, tokens_, unit, activated, d_hidden, gradients, accumulate, kernel, reduction);
  mlp_norm_.forward(stream, tokens_, unit, params, middle, normed, statistics);
  up_.backward_weight(stream, tokens_, unit, normed, d_pre_activation, gradients, accumulate, kernel, reduction);
  up_.backward_input(stream, tokens_, unit, params, prepared, d_pre_activation, d_normed, kernel);
  mlp_norm_.backward(stream, tokens_, unit, params, middle, statistics, d_normed, d_hidden, true, gradients, accumulate, reduction);
}

void Block::backward_attention(Stream& stream, int64_t layer, const void* params, const void* prepared, const void* hidden_in,
                               const void* saved, void* d_hidden, float* gradients, bool accumulate, void* workspace) const {
  const UnitTensors& unit = this->unit(layer);
  const void* const attention = at(saved, saved_.attention);
  void* const normed = at(workspace, workspace_.normed);
  void* const d_normed = at(workspace, workspace_.d_normed);
  float* const statistics = at<float>(workspace, workspace_.statistics);
  void* const kernel = at(workspace, workspace_.kernel);
  void* const reduction = at(workspace, workspace_.reduction);
  void* const d_attention = at(workspace, workspace_.d_attention);
  void* const d_qkv = at(workspace, workspace_.d_qkv);

  attention_output_.backward_weight(stream, tokens_, unit, attention, d_hidden, gradients, accumulate, kernel, reduction);
  attention_output_.backward_input(stream, tokens_, unit, params, prepared, d_hidden, d_attention, kernel);
  device_->attention().backward(stream, attention_shape(layer), rotated_qkv(stream, unit, params, saved, workspace), attention,
                                at<float>(saved, saved_.log_sum_exp), d_attention, d_qkv, kernel);
  rotate(stream, d_qkv, true);
  if (model_.qk_norm) backward_qk_norm(stream, unit, params, saved, gradients, accumulate, workspace);

  attention_norm_.forward(stream, tokens_, unit, params, hidden_in, normed, statistics);
  qkv_.backward_weight(stream, tokens_, unit, normed, d_qkv, gradients, accumulate, kernel, reduction);
  qkv_.backward_input(stream, tokens_, unit, params, prepared, d_qkv, d_normed, kernel);
  attention_norm_.backward(stream, tokens_, unit, params, hidden_in, statistics, d_normed, d_hidden, true, gradients, accumulate,
                           reduction);
}

void Block::backward_qk_norm(Stream& stream, const UnitTensors& unit, const void* params, const void* saved, float* gradients,
                             bool accumulate, void* workspace) const {
  for (int64_t head = 0; head < model_.heads + model_.kv_heads; ++head) {
    const bool query = head < model_.heads;
    const auto role = query ? TensorRole::q_norm_weight : TensorRole::k_norm_weight;
    const bool first_of_weight = head == 0 || head == model_.heads;
    const uint64_t offset = static_cast<uint64_t>(head * model_.head_dim) * size_bytes(dtype_);
    void* const d_x = at(workspace, workspace_.d_qkv + offset);
    rows_->rms_norm_backward(stream, dtype_, {tokens_, model_.head_dim, qkv_columns_}, at(saved, saved_.qkv + offset),
                             unit.parameter(params, role), at<float>(workspace, workspace_.statistics) + head * tokens_, d_x,
                             qkv_columns_, d_x, qkv_columns_, false, unit.gradient(gradients, role),
                             accumulate || !first_of_weight, at(workspace, workspace_.reduction));
  }
}

}  // namespace strata::gpu
