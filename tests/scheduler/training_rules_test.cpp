// What a step may and may not change: a rate of zero, clipping, gradients that are not finite, micro-batches.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/error.hpp"
#include "scheduler/checkpoint.hpp"
#include "tests/scheduler/training_fixture.hpp"
#include "tests/support/scratch_directory.hpp"

namespace strata::scheduler {
namespace {

const Config::Placement kPlacements[] = {{Tier::device, Tier::device, Tier::device, ActivationPolicy::device},
                                         {Tier::host, Tier::host, Tier::host, ActivationPolicy::recompute},
                                         {Tier::nvme, Tier::nvme, Tier::nvme, ActivationPolicy::recompute},
                                         {Tier::host, Tier::device, Tier::nvme, ActivationPolicy::device}};

class TrainingRules : public testing::Test {
 protected:
  TrainingRules() {
    write_random_model(directory_.path(), kTinyLlama);
    write_text(directory_.path() / "text.txt", 60000);
  }

  /// All of one quantity after a run.
  std::vector<float> values(const TrainSummary& summary, Quantity quantity) {
    const auto reader = CheckpointReader::open(summary.checkpoint);
    std::vector<float> all;
    for (size_t unit = 0; unit < reader->layout().units.size(); ++unit) {
      std::vector<float> part(reader->layout().units[unit].padded_elements);
      reader->read(quantity, static_cast<int>(unit), {0, part.size()}, part.data());
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  std::vector<float> initial_values() {
    const ModelDescription model = read_model_description(directory_.path() / "model");
    const ModelLayout layout = make_layout(model);
    const HfWeights weights(directory_.path() / "model", model, layout);
    std::vector<float> all;
    for (size_t unit = 0; unit < layout.units.size(); ++unit) {
      std::vector<float> part(layout.units[unit].padded_elements);
      weights.read_as_float(unit, {0, part.size()}, part.data());
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  /// The model with every weight of the first norm of its second block set to one value.
  std::filesystem::path write_changed_model(const std::string& name, float value) {
    const std::filesystem::path model = directory_.path() / "model", changed = directory_.path() / name;
    std::filesystem::remove_all(changed);
    const ModelDescription description = read_model_description(model);
    const ModelLayout layout = make_layout(description);
    const HfWeights weights(model, description, layout);
    HfWriterOptions options;
    options.dtype = DType::f32;
    options.source = model;
    HfWriter writer(changed, layout, options);
    for (size_t unit = 0; unit < layout.units.size(); ++unit) {
      std::vector<float> part(layout.units[unit].padded_elements);
      weights.read_as_float(unit, {0, part.size()}, part.data());
      for (const TensorLayout& tensor : layout.units[unit].tensors)
        if (tensor.name == "model.layers.1.input_layernorm.weight") std::fill_n(&part[tensor.offset], tensor.elements, value);
      writer.write_from_float(unit, {0, part.size()}, part.data());
    }
    writer.finish();
    return changed;
  }

  std::filesystem::path fresh_run() { return directory_.path() / ("run" + std::to_string(++runs_)); }

  ScratchDirectory directory_{disk_of_the_build()};
  int runs_ = 0;
};

TEST_F(TrainingRules, ARateOfZeroLeavesEveryWeightAsItWasLoadedOnEveryTier) {
  const std::vector<float> initial = initial_values();
  for (DType compute : {DType::f32, DType::bf16, DType::f16})
    for (const Config::Placement& placement : kPlacements) {
      Config config = tiny_config(directory_.path(), 2);
      config.precision.compute = compute;
      config.placement = placement;
      config.optimizer.lr = std::numeric_limits<double>::min();
      config.optimizer.weight_decay = 0;
      EXPECT_EQ(values(run_training(config, fresh_run()), Quantity::master), initial);
    }
}

TEST_F(TrainingRules, ATinyMaximumNormBoundsTheFirstMoment) {
  Config config = tiny_config(directory_.path(), 1);
  config.gradient_clipping = 1e-4;
  double squares = 0;
  for (float m : values(run_training(config, fresh_run()), Quantity::momentum)) squares += double(m) * m;
  // After one step the first moment is 0.1 of the clipped gradient.
  EXPECT_NEAR(std::sqrt(squares), 0.1 * 1e-4, 0.1 * 1e-4 * 1e-3);
}

TEST_F(TrainingRules, MicroBatchesOfAStepEqualOneBatchOfAllOfThem) {
  const auto loss_and_moments = [&](int64_t size, int64_t count) {
    Config config = tiny_config(directory_.path(), 1);
    config.batch = {size, count};
    const TrainSummary summary = run_training(config, fresh_run());
    return std::pair{summary.last_loss, values(summary, Quantity::momentum)};
  };
  const auto [loss, moments] = loss_and_moments(14, 1);
  double scale = 0;
  for (float m : moments) scale += double(m) * m;
  for (const auto& [size, count] : {std::pair{7, 2}, {2, 7}, {1, 14}}) {
    const auto [other_loss, other] = loss_and_moments(size, count);
    EXPECT_NEAR(other_loss, loss, 1e-6 * std::abs(loss)) << count << " micro-batches";
    double difference = 0;
    for (size_t i = 0; i < moments.size(); ++i) difference += std::pow(double(other[i]) - moments[i], 2);
    EXPECT_LT(std::sqrt(difference / scale), 1e-5) << count << " micro-batches";
  }
}

TEST_F(TrainingRules, ANonFiniteGradientSkipsTheStepAndChangesNoTier) {
  for (DType compute : {DType::f32, DType::bf16, DType::f16}) {
    // The largest weights of a norm that the format holds make activations overflow, and every gradient before them is NaN.
    const float largest = compute == DType::f16 ? 65504.0f : 3.3e38f;
    const std::filesystem::path broken = write_changed_model("broken", largest);
    for (const Config::Placement& placement : kPlacements) {
      Config config = tiny_config(directory_.path(), 3);
      config.model.path = broken;
      config.precision.compute = compute;
      config.placement = placement;
      int skipped = 0;
      TrainOptions options;
      options.config = config;
      options.run_directory = fresh_run();
      options.resume = false;
      for (const auto& store : config.tiers.nvme) options.discard.push_back(store.path.string());  // of the run before
      options.on_step = [&](const StepReport& report) { skipped += report.skipped; };
      const TrainSummary summary = train(options);
      EXPECT_EQ(skipped, 3);
      for (float m : values(summary, Quantity::momentum)) ASSERT_EQ(m, 0.0f);
      for (float v : values(summary, Quantity::variance)) ASSERT_EQ(v, 0.0f);
    }
  }
}

TEST_F(TrainingRules, WeightsThatAreNotFiniteAreRefused) {
  Config config = tiny_config(directory_.path(), 3);
  config.model.path = write_changed_model("broken", std::numeric_limits<float>::quiet_NaN());
  try {
    run_training(config, fresh_run());
    FAIL() << "trained on NaN";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("element 0 is nan"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("model.layers.1.input_layernorm.weight"), std::string::npos) << error.what();
  }
}

TEST_F(TrainingRules, EvaluationDoesNotChangeTraining) {
  Config config = tiny_config(directory_.path(), 6);
  config.placement = kPlacements[2];
  const TrainSummary plain = run_training(config, fresh_run());
  config.data.eval = {directory_.path() / "text.txt"};
  config.checkpoint.every = 2;
  const TrainSummary evaluated = run_training(config, fresh_run());
  EXPECT_EQ(evaluated.state_hash, plain.state_hash);
  EXPECT_EQ(evaluated.last_loss, plain.last_loss);
}

TEST_F(TrainingRules, AChangedMicroBatchSizeReadsTheSameSamples) {
  // Samples are counted one by one, so another split of the same step resumes at the same place.
  Config config = tiny_config(directory_.path(), 4);
  config.batch = {.micro_batch_size = 4, .gradient_accumulation_steps = 1};
  config.steps = 4;
  const std::filesystem::path run = fresh_run();
  run_training(config, run);
  config.batch = {.micro_batch_size = 1, .gradient_accumulation_steps = 4};
  config.steps = 8;
  const double resumed = run_training(config, run, /*resume=*/true).last_loss;
  config.batch = {.micro_batch_size = 4, .gradient_accumulation_steps = 1};
  const double whole = run_training(config, fresh_run()).last_loss;
  EXPECT_NEAR(resumed, whole, 1e-4 * std::abs(whole));
}

TEST_F(TrainingRules, DecayOfMatricesLeavesOutTheTensorsOfOneDimensionOnEveryTier) {
  for (DType compute : {DType::f32, DType::bf16})
    for (const Config::Placement& placement : kPlacements) {
      Config config = tiny_config(directory_.path(), 1);
      config.precision.compute = compute;
      config.placement = placement;
      config.optimizer.weight_decay = 0.5;
      const std::vector<float> all = values(run_training(config, fresh_run()), Quantity::master);
      config.optimizer.decay = DecayTargets::matrices;
      const std::vector<float> matrices = values(run_training(config, fresh_run()), Quantity::master);
      config.schedule.tile_bytes = 64 << 10;
      config.schedule.update_threads = 3;
      EXPECT_EQ(values(run_training(config, fresh_run()), Quantity::master), matrices);
      config.optimizer.weight_decay = 0;
      const std::vector<float> none = values(run_training(config, fresh_run()), Quantity::master);
      // After one step the gradients were the same: a tensor is that of either run.
      size_t vectors = 0, start = 0;
      for (const UnitLayout& unit : make_layout(read_model_description(directory_.path() / "model")).units) {
        for (const TensorLayout& tensor : unit.tensors) {
          const bool decays = tensor.shape.size() >= 2;
          vectors += !decays;
          for (size_t i = start + tensor.offset; i < start + tensor.offset + tensor.elements; ++i)
            ASSERT_EQ(matrices[i], decays ? all[i] : none[i]) << tensor.name;
        }
        start += unit.padded_elements;
      }
      EXPECT_EQ(vectors, 7u);  // two norms a block and the last
      EXPECT_NE(matrices, all);
      EXPECT_NE(matrices, none);
    }
}

}  // namespace
}  // namespace strata::scheduler
