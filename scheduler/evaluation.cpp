#include "scheduler/evaluation.hpp"

#include <algorithm>
#include <chrono>
#include <limits>

namespace strata::scheduler {

namespace {

/// Fills the host's token buffers with samples [first, end), and what is left of the batch with samples that do not count. Returns the
/// tokens that count.
uint64_t load_batch(Runtime& runtime, const TokenDataset& data, uint64_t first, uint64_t end) {
  const RunPlan& plan = runtime.plan();
  const int64_t length = plan.config.data.sequence_length;
  uint64_t counting = 0;
  for (int64_t batch = 0; batch < plan.config.batch.gradient_accumulation_steps; ++batch) {
    const auto part = static_cast<uint32_t>(batch);
    auto* tokens = reinterpret_cast<int32_t*>(runtime.executor().address(plan.steps.host_tokens.part(part)));
    auto* labels = reinterpret_cast<int32_t*>(runtime.executor().address(plan.steps.host_labels.part(part)));
    for (int64_t row = 0; row < plan.config.batch.micro_batch_size; ++row, ++first, tokens += length, labels += length) {
      if (first < end) {
        data.sample_at(first, tokens, labels);
      } else {
        std::fill_n(tokens, length, 0);
        std::fill_n(labels, length, kIgnoredLabel);
      }
      counting += static_cast<uint64_t>(std::count_if(labels, labels + length, [](int32_t label) { return label >= 0; }));
    }
  }
  return counting;
}

}  // namespace

std::optional<Evaluation> evaluate(Runtime& runtime, const TokenDataset& data, const EvaluationOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  const Config& config = runtime.plan().config;
  const auto per_batch = static_cast<uint64_t>(config.batch.micro_batch_size * config.batch.gradient_accumulation_steps);
  Evaluation result;
  result.of_samples = data.samples();
  result.samples = options.samples == 0 ? data.samples() : std::min(options.samples, data.samples());
  double sum = 0;
  for (uint64_t first = 0; first < result.samples; first += per_batch) {
    if (options.stop && options.stop->load()) return std::nullopt;
    if (options.progress) options.progress(first, result.samples);
    result.tokens += load_batch(runtime, data, first, result.samples);
    runtime.executor().run(runtime.plan().steps.evaluate, {});
    const auto* losses = reinterpret_cast<const double*>(runtime.executor().address(runtime.plan().steps.host_losses));
    for (int64_t batch = 0; batch < config.batch.gradient_accumulation_steps; ++batch) sum += losses[batch];
  }
  result.loss = result.tokens > 0 ? sum / static_cast<double>(result.tokens) : std::numeric_limits<double>::quiet_NaN();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace strata::scheduler
