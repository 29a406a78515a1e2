// Evaluation is the mean over every token of the evaluation files, once, and changes nothing.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <set>

#include "scheduler/evaluation.hpp"
#include "tests/parity/engine_harness.hpp"
#include "tests/scheduler/training_fixture.hpp"
#include "tests/support/files.hpp"
#include "tests/support/scratch_directory.hpp"

namespace strata::scheduler {
namespace {

constexpr int64_t kLength = 32;

class EvaluationOfTokens : public testing::Test {
 protected:
  EvaluationOfTokens() {
    write_random_model(directory_.path(), kTinyLlama);
    write_text(directory_ / "text.txt", 20000);
    const std::string text = read_file(directory_ / "text.txt");
    // 332 and 49 predicted tokens: 11 and 2 windows, the last of each short; and a file with none.
    write_file(directory_ / "a.txt", text.substr(1000, 333));
    write_file(directory_ / "b.txt", text.substr(5000, 50));
    write_file(directory_ / "one.txt", "x");
  }

  std::vector<std::filesystem::path> files() const { return {directory_ / "a.txt", directory_ / "one.txt", directory_ / "b.txt"}; }

  /// One step at a rate that moves no weight, then an evaluation.
  Config config() const {
    Config config = tiny_config(directory_.path(), 1);
    config.optimizer.lr = std::numeric_limits<double>::min();
    config.optimizer.weight_decay = 0;
    config.data.eval = files();
    return config;
  }

  std::vector<EvaluationReport> evaluations(const Config& config, TrainSummary* summary = nullptr) {
    std::vector<EvaluationReport> reports;
    TrainOptions options;
    options.config = config;
    options.run_directory = fresh_run();
    options.resume = false;
    for (const auto& store : config.tiers.nvme) options.discard.push_back(store.path.string());  // of an earlier run of the test
    options.hash_state = true;
    options.on_evaluation = [&](const EvaluationReport& report) { reports.push_back(report); };
    const TrainSummary done = train(options);
    if (summary) *summary = done;
    return reports;
  }

  /// Sum of the negative log-likelihoods of the first `samples` windows, in double from the engine's logits of one window at a time.
  double reference_sum(uint64_t samples) {
    const ModelDescription model = read_model_description(directory_ / "model");
    const ModelLayout layout = make_layout(model);
    const HfWeights weights(directory_ / "model", model, layout);
    parity::UnitBuffers parameters;
    for (size_t unit = 0; unit < layout.units.size(); ++unit) {
      parameters.emplace_back(layout.units[unit].padded_elements);
      weights.read_as_float(unit, {0, parameters.back().size()}, parameters.back().data());
    }
    parity::EngineHarness engine(model, layout, {.compute = DType::f32, .micro_batch_size = 1, .sequence_length = kLength});
    engine.set_parameters(parameters);
    double sum = 0;
    for (const auto& file : files()) {
      const std::string text = read_file(file);
      for (size_t first = 0; first + 1 < text.size() && samples > 0; first += kLength, --samples) {
        const size_t there = std::min<size_t>(kLength, text.size() - 1 - first);
        std::vector<int32_t> tokens(kLength, 0);
        for (size_t i = 0; i < there; ++i) tokens[i] = static_cast<unsigned char>(text[first + i]);
        const std::vector<float> logits = engine.logits(tokens);
        for (size_t i = 0; i < there; ++i) {
          const float* row = &logits[i * static_cast<size_t>(model.vocab_size)];
          const double largest = *std::max_element(row, row + model.vocab_size);
          double total = 0;
          for (int64_t word = 0; word < model.vocab_size; ++word) total += std::exp(row[word] - largest);
          sum += largest + std::log(total) - row[static_cast<unsigned char>(text[first + i + 1])];
        }
      }
    }
    return sum;
  }

  std::filesystem::path fresh_run() { return directory_ / ("run" + std::to_string(++runs_)); }

  ScratchDirectory directory_{disk_of_the_build()};
  int runs_ = 0;
};

TEST_F(EvaluationOfTokens, IsTheMeanOverEveryTokenOnceWhateverBatchAccumulationAndSeed) {
  const double expected = reference_sum(1000) / (332 + 49);
  for (int64_t micro_batch : {1, 2, 4}) {
    std::set<double> losses;
    for (int64_t accumulation : {1, 3})
      for (uint64_t seed : {42u, 7u}) {
        Config changed = config();
        changed.batch = {micro_batch, accumulation};
        changed.data.seed = seed;
        const std::vector<EvaluationReport> reports = evaluations(changed);
        ASSERT_EQ(reports.size(), 1u);
        EXPECT_EQ(reports[0].tokens, 332u + 49u);
        EXPECT_EQ(reports[0].samples, 13u);
        EXPECT_EQ(reports[0].of_samples, 13u);
        EXPECT_NEAR(reports[0].loss, expected, 1e-6 * expected) << micro_batch << " x " << accumulation;
        losses.insert(reports[0].loss);
      }
    EXPECT_EQ(losses.size(), 1u) << "accumulation or seed changed a bit with micro-batches of " << micro_batch;
  }
}

TEST_F(EvaluationOfTokens, OfAFewSamplesReadsTheFirstOfTheFiles) {
  Config changed = config();
  changed.evaluation.samples = 12;
  changed.batch = {4, 2};
  const std::vector<EvaluationReport> reports = evaluations(changed);
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].tokens, 332u + 32u);
  EXPECT_EQ(reports[0].samples, 12u);
  EXPECT_EQ(reports[0].of_samples, 13u);
  const double expected = reference_sum(12) / (332 + 32);
  EXPECT_NEAR(reports[0].loss, expected, 1e-6 * expected);
}

TEST_F(EvaluationOfTokens, DoesNotCountMaskedTokens) {
  // BIN.TOK with masks: the second half of the text does not count.
  const std::string text = read_file(directory_ / "a.txt").substr(0, 64);
  std::vector<int32_t> header(256, 0);
  std::memcpy(header.data(), "BIN.TOK\n", 8);
  const int32_t fields[] = {2, 4, 64, 256, 1};  // version, bytes a token, tokens, vocabulary, masks follow
  std::copy(std::begin(fields), std::end(fields), header.begin() + 2);
  std::string file(reinterpret_cast<const char*>(header.data()), 1024);
  for (unsigned char c : text) {
    const int32_t token = c;
    file.append(reinterpret_cast<const char*>(&token), 4);
  }
  file += std::string(4, '\xff') + std::string(4, '\0');
  write_file(directory_ / "masked.bin", file);
  Config changed = config();
  changed.data.format = DataFormat::automatic;
  changed.data.eval = {directory_ / "masked.bin"};
  const std::vector<EvaluationReport> masked = evaluations(changed);
  ASSERT_EQ(masked.size(), 1u);
  EXPECT_EQ(masked[0].tokens, 31u);
  write_file(directory_ / "half.txt", text.substr(0, 32));
  changed.data.eval = {directory_ / "half.txt"};
  const std::vector<EvaluationReport> half = evaluations(changed);
  EXPECT_EQ(half.at(0).tokens, 31u);
  EXPECT_NEAR(masked[0].loss, half[0].loss, 1e-6 * half[0].loss);
}

TEST_F(EvaluationOfTokens, AfterEveryStepChangesNoBitOfTraining) {
  const Config::Placement placements[] = {{Tier::device, Tier::device, Tier::device, ActivationPolicy::device},
                                          {Tier::host, Tier::host, Tier::host, ActivationPolicy::recompute},
                                          {Tier::nvme, Tier::nvme, Tier::nvme, ActivationPolicy::recompute},
                                          {Tier::host, Tier::device, Tier::nvme, ActivationPolicy::device}};
  for (const Config::Placement& placement : placements)
    for (UpdateMode update : {UpdateMode::lazy, UpdateMode::after_backward}) {
      Config plain = tiny_config(directory_.path(), 5);
      plain.placement = placement;
      plain.schedule.update = update;
      Config evaluated = plain;
      evaluated.data.eval = files();
      evaluated.evaluation.every = 1;
      TrainSummary first, second;
      EXPECT_EQ(evaluations(plain, &first).size(), 0u);
      const std::vector<EvaluationReport> reports = evaluations(evaluated, &second);
      ASSERT_EQ(reports.size(), 5u);
      EXPECT_LT(reports[4].loss, reports[0].loss);
      EXPECT_EQ(first.state_hash, second.state_hash);
      EXPECT_EQ(first.last_loss, second.last_loss);
    }
}

TEST_F(EvaluationOfTokens, ComesEveryFewStepsAndAtTheEnd) {
  Config changed = config();
  changed.steps = 7;
  changed.evaluation.every = 3;
  changed.checkpoint.every = 2;
  std::vector<int64_t> steps;
  for (const EvaluationReport& report : evaluations(changed)) steps.push_back(report.step);
  EXPECT_EQ(steps, (std::vector<int64_t>{3, 6, 7}));
  changed.evaluation.every = 0;
  steps.clear();
  for (const EvaluationReport& report : evaluations(changed)) steps.push_back(report.step);
  EXPECT_EQ(steps, (std::vector<int64_t>{2, 4, 6, 7}));
}

TEST_F(EvaluationOfTokens, ThatIsStoppedLosesNoStepAndReportsNoLoss) {
  Config changed = tiny_config(directory_.path(), 4);
  const std::string expected = run_training(changed, fresh_run()).state_hash;
  changed.data.eval = files();
  changed.evaluation.every = 2;
  changed.batch = {2, 2};
  std::atomic<bool> stop = false;
  TrainOptions options;
  options.config = changed;
  options.run_directory = fresh_run();
  options.hash_state = true;
  options.stop = &stop;
  std::vector<int64_t> evaluated;
  options.on_evaluation = [&](const EvaluationReport& report) { evaluated.push_back(report.step); };
  options.on_evaluation_progress = [&](uint64_t done, uint64_t) { stop = done > 0; };
  const TrainSummary stopped = train(options);
  EXPECT_TRUE(stopped.interrupted);
  EXPECT_EQ(stopped.steps_done, 2);
  EXPECT_TRUE(evaluated.empty());
  EXPECT_EQ(last_step_in_metrics(options.run_directory), 2);
  EXPECT_EQ(read_file(options.run_directory / "metrics.jsonl").find("eval_loss"), std::string::npos);
  options.on_evaluation_progress = nullptr;
  stop = false;
  EXPECT_EQ(train(options).state_hash, expected);
  EXPECT_EQ(evaluated, (std::vector<int64_t>{4}));
  const std::string metrics = read_file(options.run_directory / "metrics.jsonl");
  EXPECT_NE(metrics.find("\"eval_tokens\":381"), std::string::npos) << metrics;
}

TEST_F(EvaluationOfTokens, AloneGivesTheBitsOfTrainingsFromEveryTier) {
  for (DType compute : {DType::f32, DType::bf16}) {
    Config training = config();
    training.precision.compute = compute;
    training.batch = {2, 2};
    const double expected = evaluations(training).at(0).loss;
    const ModelDescription model = read_model_description(directory_ / "model");
    const HfWeights weights(directory_ / "model", model, make_layout(model));
    for (Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
      Config alone = training;
      alone.batch = {2, 1};
      alone.placement = {.parameters = tier, .gradients = {}, .optimizer = {}, .activations = {}};
      alone.schedule.tile_bytes = 64 << 10;
      alone.debug.poison = true;
      const TokenDataset data({.files = alone.data.eval, .format = alone.data.format, .sequence_length = kLength,
                               .vocab_size = model.vocab_size, .short_windows = true});
      Runtime runtime(plan_evaluation(alone, model), StoreMode::create);
      StateSources sources;
      sources.master = [&](int unit, Range range, float* out) { weights.read_as_float(static_cast<size_t>(unit), range, out); };
      runtime.state().fill(sources, {});
      const std::optional<Evaluation> result = evaluate(runtime, data, {});
      ASSERT_TRUE(result);
      EXPECT_EQ(result->loss, expected) << to_string(tier);
      EXPECT_EQ(result->tokens, 381u);
      // The parameters are all the state there is.
      const uint64_t state = make_layout(model).elements() * size_bytes(compute);
      const Memory home = tier == Tier::device ? Memory::device : tier == Tier::host ? Memory::host : Memory::store_scratch;
      const uint64_t planned = runtime.plan().steps.memory.bytes(home, "parameters");
      EXPECT_GE(planned, state);
      EXPECT_LT(planned, state + state / 4);
      EXPECT_EQ(runtime.plan().steps.memory.bytes(Memory::device, "optimizer state"), 0u);
    }
  }
}

}  // namespace
}  // namespace strata::scheduler
