// Strata's engine against Hugging Face transformers: the same weights and tokens give the same logits, loss, gradients
// and training run (vectors by tests/reference/make_parity_vectors.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>

#include "cpu_adam/adam.hpp"
#include "tests/parity/engine_harness.hpp"
#include "tests/parity/reference_data.hpp"

namespace strata::parity {
namespace {

constexpr double kFp32Tolerance = 1e-5;
// Half-precision errors are chance as much as rule: two correct programs differ by some tenths of their own error. What
// transformers' errors are, is said in tests/reference/make_parity_vectors.py.
constexpr double kHalfMargin = 1.25;

int64_t counting(std::span<const int32_t> labels) {
  return static_cast<int64_t>(labels.size()) - std::count(labels.begin(), labels.end(), -100);
}

gpu::EngineOptions engine_options(const Batch& batch, DType compute) {
  return {.compute = compute, .micro_batch_size = batch.rows, .sequence_length = batch.length};
}

/// ||x - reference|| / ||reference||, and what both norms are made of, so that tensors can be pooled.
struct Difference {
  double error_squared = 0.0, norm_squared = 0.0;
  void add(std::span<const float> value, std::span<const double> reference, double scale) {
    ASSERT_EQ(value.size(), reference.size());
    for (size_t i = 0; i < value.size(); ++i) {
      const double error = static_cast<double>(value[i]) / scale - reference[i];
      error_squared += error * error;  // a NaN stays and fails every comparison
      norm_squared += reference[i] * reference[i];
    }
  }
  double relative() const { return std::sqrt(error_squared / norm_squared); }
};

Difference difference(std::span<const float> value, std::span<const double> reference, double scale = 1.0) {
  Difference result;
  result.add(value, reference, scale);
  return result;
}

std::span<const float> tensor_of(const UnitBuffers& buffers, size_t unit, const TensorLayout& tensor) {
  return std::span(buffers.at(unit)).subspan(tensor.offset, tensor.elements);
}

void expect_zero_gaps(const ModelLayout& layout, const UnitBuffers& gradients) {
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    std::vector<float> rest = gradients[unit];
    for (const auto& tensor : layout.units[unit].tensors) {
      std::fill_n(rest.begin() + static_cast<std::ptrdiff_t>(tensor.offset), tensor.elements, 0.0f);
    }
    EXPECT_TRUE(std::all_of(rest.begin(), rest.end(), [](float value) { return value == 0.0f; }))
        << "the gaps of unit " << layout.units[unit].name << " are not zero";
  }
}

bool same_bits(const UnitBuffers& a, const UnitBuffers& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](const auto& x, const auto& y) {
           return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
         });
}

class Parity : public testing::TestWithParam<std::string> {
 protected:
  Reference reference_{GetParam()};
};

TEST_P(Parity, RotaryFrequenciesAreThoseOfTransformers) {
  if (reference_.model.family == Family::gpt2) return;
  const auto rope = rope_frequencies(reference_.model, reference_.batch.length);
  const auto expected = reference_.numbers.at("rope").at("inverse_frequency").get<std::vector<double>>();
  ASSERT_EQ(rope.inverse_frequency.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(rope.inverse_frequency[i], expected[i], 1e-12 * expected[i]) << "frequency " << i;
  }
  EXPECT_NEAR(rope.attention_factor, reference_.numbers.at("rope").at("attention_factor").get<double>(), 1e-12);
}

TEST_P(Parity, Fp32LogitsLossAndGradientsAreThoseOfFloat64) {
  const Batch& batch = reference_.batch;
  EngineHarness harness(reference_.model, reference_.layout, engine_options(batch, DType::f32));
  harness.set_parameters(reference_.parameters);

  EXPECT_LT(difference(harness.logits(batch.tokens), reference_.tensor("logits")).relative(), kFp32Tolerance);

  const double count = static_cast<double>(counting(batch.labels));
  const double loss = reference_.numbers.at("loss").get<double>();
  EXPECT_NEAR(harness.loss_sum(batch.tokens, batch.labels) / count, loss, kFp32Tolerance * loss);

  const auto result = harness.step(batch.tokens, batch.labels, static_cast<float>(1.0 / count), Activations::keep);
  EXPECT_NEAR(result.loss_sum / count, loss, kFp32Tolerance * loss);
  for (size_t unit = 0; unit < reference_.layout.units.size(); ++unit) {
    for (const auto& tensor : reference_.layout.units[unit].tensors) {
      const auto gradient = reference_.tensor("grad." + tensor.name);
      EXPECT_LT(difference(tensor_of(result.gradients, unit, tensor), gradient).relative(), kFp32Tolerance)
          << tensor.name;
    }
  }
  expect_zero_gaps(reference_.layout, result.gradients);
}

void expect_no_worse_than_transformers(const Reference& reference, DType compute) {
  const auto& theirs = reference.numbers.at("hugging_face_error").at(std::string(to_string(compute)));
  const Batch& batch = reference.batch;
  EngineHarness harness(reference.model, reference.layout, engine_options(batch, compute));
  harness.set_parameters(reference.parameters);

  EXPECT_LE(difference(harness.logits(batch.tokens), reference.tensor("logits")).relative(),
            kHalfMargin * theirs.at("logits").get<double>());

  const double count = static_cast<double>(counting(batch.labels));
  const double loss_scale = compute == DType::f16 ? reference.numbers.at("fp16_loss_scale").get<double>() : 1.0;
  const auto result =
      harness.step(batch.tokens, batch.labels, static_cast<float>(loss_scale / count), Activations::keep);
  const double loss = reference.numbers.at("loss").get<double>();
  // The mean's own error there may be small by luck; half the norm-wise error of the tokens' losses is over three
  // standard deviations of a mean over some 40 tokens.
  EXPECT_NEAR(result.loss_sum / count, loss, 0.5 * theirs.at("token_losses").get<double>() * loss);

  Difference all;
  for (size_t unit = 0; unit < reference.layout.units.size(); ++unit) {
    for (const auto& tensor : reference.layout.units[unit].tensors) {
      const auto mine = tensor_of(result.gradients, unit, tensor);
      const auto gradient = reference.tensor("grad." + tensor.name);
      all.add(mine, gradient, loss_scale);
      EXPECT_LE(difference(mine, gradient, loss_scale).relative(),
                kHalfMargin * theirs.at("gradients").at(tensor.name).get<double>())
          << tensor.name;
    }
  }
  EXPECT_LE(all.relative(), theirs.at("all_gradients").get<double>());
}

TEST_P(Parity, Bf16IsNoFartherFromFloat64ThanTransformersIs) {
  expect_no_worse_than_transformers(reference_, DType::bf16);
}

TEST_P(Parity, Fp16IsNoFartherFromFloat64ThanTransformersIs) {
  expect_no_worse_than_transformers(reference_, DType::f16);
}

TEST_P(Parity, RecomputedActivationsGiveTheSameBitsAsKeptOnes) {
  const Batch& batch = reference_.batch;
  for (const DType compute : {DType::f32, DType::bf16, DType::f16}) {
    auto options = engine_options(batch, compute);
    options.micro_batch_size = 1;  // two micro-batches, so that accumulation is covered
    EngineHarness harness(reference_.model, reference_.layout, options);
    harness.set_parameters(reference_.parameters);
    const auto kept = harness.step(batch.tokens, batch.labels, 1.0f, Activations::keep);
    const auto recomputed = harness.step(batch.tokens, batch.labels, 1.0f, Activations::recompute);
    EXPECT_EQ(kept.loss_sum, recomputed.loss_sum) << to_string(compute);
    EXPECT_TRUE(same_bits(kept.gradients, recomputed.gradients)) << to_string(compute);
  }
}

// A matrix product may order its sums by the number of threads, as oneDNN 3 does for weight gradients; nothing else may differ.
TEST(ParityThreads, TwoComputeThreadsDifferFromOneByTheOrderOfSumsAlone) {
  for (const std::string name : {"gpt2", "qwen3"}) {
    const Reference reference(name);
    const Batch& batch = reference.batch;
    for (const DType compute : {DType::f32, DType::bf16}) {
      StepResult results[2];
      for (const int threads : {1, 2}) {
        EngineHarness harness(reference.model, reference.layout, engine_options(batch, compute), threads);
        harness.set_parameters(reference.parameters);
        results[threads - 1] = harness.step(batch.tokens, batch.labels, 1.0f, Activations::keep);
      }
      const double tolerance = compute == DType::f32 ? 1e-6 : 1e-2;  // of bf16, a sum that falls to the other side of a rounding
      EXPECT_NEAR(results[0].loss_sum, results[1].loss_sum, tolerance * std::abs(results[0].loss_sum)) << name << " " << to_string(compute);
      Difference all;
      for (size_t unit = 0; unit < results[0].gradients.size(); ++unit) {
        const auto& one = results[0].gradients[unit];
        all.add(results[1].gradients[unit], std::vector<double>(one.begin(), one.end()), 1.0);
      }
      EXPECT_LE(all.relative(), tolerance) << name << " " << to_string(compute);
    }
  }
}

/// Master weights and moments in fp32, clipped as torch.nn.utils.clip_grad_norm_ does.
class Trainer {
 public:
  Trainer(const Reference& reference, const nlohmann::json& run)
      : clip_(run.at("clip")), lr_(run.at("lr")), parameters_(reference.parameters) {
    settings_ = {.beta1 = run.at("betas").at(0),
                 .beta2 = run.at("betas").at(1),
                 .epsilon = run.at("eps"),
                 .weight_decay = run.at("weight_decay")};
    for (const auto& unit : parameters_) {
      momentum_.emplace_back(unit.size());
      variance_.emplace_back(unit.size());
    }
  }
  const UnitBuffers& parameters() const { return parameters_; }

  /// Returns the norm of the gradients before clipping.
  double update(const UnitBuffers& gradients) {
    double squares = 0.0;
    for (const auto& unit : gradients) {
      for (const float value : unit) squares += static_cast<double>(value) * value;
    }
    const double norm = std::sqrt(squares);
    const auto step = AdamStep::make(settings_, ++steps_, lr_, std::min(1.0, clip_ / (norm + 1e-6)));
    for (size_t unit = 0; unit < parameters_.size(); ++unit) {
      // The updater asks for 64-byte alignment, which std::vector does not give.
      parameter_.assign(parameters_[unit]);
      m_.assign(momentum_[unit]);
      v_.assign(variance_[unit]);
      gradient_.assign(gradients[unit]);
      updater_.update({.parameter = parameter_.data(),
                       .momentum = m_.data(),
                       .variance = v_.data(),
                       .gradient = gradient_.data(),
                       .elements = gradients[unit].size(),
                       .step = step});
      parameter_.copy_to(parameters_[unit]);
      m_.copy_to(momentum_[unit]);
      v_.copy_to(variance_[unit]);
    }
    return norm;
  }

 private:
  class AlignedFloats {
   public:
    void assign(const std::vector<float>& values) {
      storage_.resize((values.size() * sizeof(float) + 63) / 64);
      std::memcpy(storage_.data(), values.data(), values.size() * sizeof(float));
    }
    void copy_to(std::vector<float>& values) const {
      std::memcpy(values.data(), storage_.data(), values.size() * sizeof(float));
    }
    float* data() { return reinterpret_cast<float*>(storage_.data()); }

   private:
    struct alignas(64) Line {
      std::byte bytes[64];
    };
    std::vector<Line> storage_;
  };

  AdamSettings settings_;
  double clip_, lr_;
  int64_t steps_ = 0;
  UnitBuffers parameters_, momentum_, variance_;
  AlignedFloats parameter_, m_, v_, gradient_;
  AdamUpdater updater_{2};
};

TEST_P(Parity, TwentyAdamWStepsFollowPyTorch) {
  const auto& run = reference_.numbers.at("train");
  const auto losses = run.at("losses_float64").get<std::vector<double>>();
  const auto norms = run.at("gradient_norms_float64").get<std::vector<double>>();
  Trainer trainer(reference_, run);
  EngineHarness harness(reference_.model, reference_.layout, engine_options(reference_.batch, DType::f32));
  for (size_t step = 0; step < losses.size(); ++step) {
    const Batch& batch = reference_.train_batches.at(step % reference_.train_batches.size());
    harness.set_parameters(trainer.parameters());
    const double count = static_cast<double>(counting(batch.labels));
    const auto result =
        harness.step(batch.tokens, batch.labels, static_cast<float>(1.0 / count), Activations::recompute);
    const double norm = trainer.update(result.gradients);
    ASSERT_NEAR(result.loss_sum / count, losses[step], kFp32Tolerance * losses[step]) << "step " << step;
    ASSERT_NEAR(norm, norms[step], 10 * kFp32Tolerance * norms[step]) << "step " << step;
  }
  EXPECT_LT(losses.back(), losses.front() - 0.3) << "the reference run itself must learn";
}

INSTANTIATE_TEST_SUITE_P(Models, Parity,
                         testing::Values("gpt2", "gpt2_untied", "llama_mha", "llama_gqa", "llama_tied",
                                         "llama_rope_llama3", "llama_rope_linear", "llama_rope_dynamic",
                                         "llama_rope_yarn", "llama_attention_bias", "llama_mlp_bias", "mistral_window",
                                         "qwen2", "qwen2_window", "qwen3", "qwen3_tied"),
                         [](const auto& info) { return info.param; });

struct Split {
  int64_t rows;
  int64_t micro_batches;
};

class Accumulation : public testing::TestWithParam<std::tuple<std::string, Split>> {};

TEST_P(Accumulation, MicroBatchesAddUpToTheWholeBatch) {
  const auto& [name, split] = GetParam();
  const Reference reference(name);
  const size_t elements = static_cast<size_t>(split.rows * reference.batch.length);
  const auto tokens = std::span(reference.batch.tokens).first(elements);
  const auto labels = std::span(reference.batch.labels).first(elements);
  EngineHarness harness(reference.model, reference.layout,
                        {.compute = DType::f32,
                         .micro_batch_size = split.rows / split.micro_batches,
                         .sequence_length = reference.batch.length});
  harness.set_parameters(reference.parameters);
  const double count = static_cast<double>(counting(labels));
  const auto result = harness.step(tokens, labels, static_cast<float>(1.0 / count), Activations::recompute);
  const std::string rows = std::to_string(split.rows);
  const double loss = reference.numbers.at("losses").at(rows).get<double>();
  EXPECT_NEAR(result.loss_sum / count, loss, kFp32Tolerance * loss);
  for (size_t unit = 0; unit < reference.layout.units.size(); ++unit) {
    for (const auto& tensor : reference.layout.units[unit].tensors) {
      const auto gradient = reference.tensor("rows" + rows + ".grad." + tensor.name);
      EXPECT_LT(difference(tensor_of(result.gradients, unit, tensor), gradient).relative(), kFp32Tolerance)
          << tensor.name;
    }
  }
}

std::string split_name(const testing::TestParamInfo<Accumulation::ParamType>& info) {
  const auto& [name, split] = info.param;
  return name + "_" + std::to_string(split.rows) + "_rows_in_" + std::to_string(split.micro_batches);
}

INSTANTIATE_TEST_SUITE_P(Splits, Accumulation,
                         testing::Combine(testing::Values("accumulate_gpt2", "accumulate_llama"),
                                          testing::Values(Split{14, 1}, Split{14, 2}, Split{14, 7}, Split{64, 1},
                                                          Split{64, 2}, Split{64, 64})),
                         split_name);

}  // namespace
}  // namespace strata::parity
