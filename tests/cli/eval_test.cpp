// `strata eval`: the loss of a model, a checkpoint or a run alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "tests/cli/trained_run.hpp"

namespace strata::cli::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// Files to evaluate on, 299 and 40 predicted tokens: 19 and 3 windows of 16.
std::vector<fs::path> evaluation_files(const fs::path& directory) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(12 + i * 11 % 40);
  write_file(directory / "e1.txt", text);
  write_file(directory / "e2.txt", text.substr(3, 41));
  return {directory / "e1.txt", directory / "e2.txt"};
}

double last_eval_loss(const fs::path& run) {
  std::istringstream lines(read_file(run / "metrics.jsonl"));
  double loss = -1;
  for (std::string line; std::getline(lines, line);)
    if (const nlohmann::json json = nlohmann::json::parse(line); json.contains("eval_loss")) loss = json["eval_loss"];
  return loss;
}

class Eval : public ::testing::TestWithParam<Optimizer> {};
INSTANTIATE_TEST_SUITE_P(Checkpoints, Eval, ::testing::Values(Optimizer::host, Optimizer::nvme),
                         [](const auto& info) { return info.param == Optimizer::host ? "OfFiles" : "OfAStore"; });

TEST_P(Eval, OfACheckpointIsTheEvaluationOfItsRun) {
  const ScratchDirectory files;
  const std::vector<fs::path> paths = evaluation_files(files.path());
  const TrainedRun trained(GetParam(), {"data.eval=" + nlohmann::json({paths[0].string(), paths[1].string()}).dump(),
                                        "batch.gradient_accumulation_steps=3"});
  const double expected = last_eval_loss(trained.run());
  ASSERT_GT(expected, 0);
  for (const fs::path& from : {trained.checkpoint(), trained.run() / "checkpoints", trained.run()}) {
    const Outcome outcome = strata({"eval", from, paths[0], paths[1], "--json"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.json().at("loss"), expected);
    EXPECT_EQ(outcome.json().at("tokens"), 299 + 40);
    EXPECT_EQ(outcome.json().at("samples"), 19 + 3);
    EXPECT_EQ(outcome.json().at("step"), 4);
    EXPECT_NEAR(outcome.json().at("perplexity"), std::exp(expected), 1e-9 * std::exp(expected));
  }
  // The run goes on as if nothing had been read.
  const Outcome verified = strata({"verify", trained.run() / "checkpoints"});
  EXPECT_EQ(verified.status, 0) << verified.err << verified.out;
  // And so says the model that it exports.
  ASSERT_EQ(strata({"export", trained.run(), trained.scratch() / "out"}).status, 0);
  const Outcome exported = strata({"eval", trained.scratch() / "out", paths[0], paths[1], "--json", "--compute", "fp32",
                                   "--sequence-length", "16", "--device-memory", "64MiB", "--host-memory", "64MiB"});
  ASSERT_EQ(exported.status, 0) << exported.err;
  EXPECT_NEAR(exported.json().at("loss"), expected, 1e-6 * expected);
}

class EvalOfAModel : public ::testing::Test {
 protected:
  Outcome eval(std::vector<std::string> more) {
    const std::vector<fs::path> paths = evaluation_files(scratch_.path());
    more.insert(more.begin(), {"eval", reference_model("llama_gqa"), paths[0], "--sequence-length", "16", "--device-memory", "64MiB",
                               "--host-memory", "64MiB", "--compute", "fp32"});
    return strata(more);
  }
  const ScratchDirectory scratch_;
};

TEST_F(EvalOfAModel, PrintsLossTokensAndSamples) {
  const Outcome outcome = eval({});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, ::testing::ContainsRegex("loss +[0-9]\\.[0-9]{1,8}\n"));
  EXPECT_THAT(outcome.out, ::testing::ContainsRegex("tokens +299\n"));
  EXPECT_THAT(outcome.out, ::testing::ContainsRegex("samples +19\n"));
}

TEST_F(EvalOfAModel, IsTheSameFromEveryTierAndLeavesNothingBehind) {
  fs::create_directories(scratch_ / "drive");
  const Outcome plain = eval({"--json"}), streamed = eval({"--json", "--nvme", scratch_ / "drive"});
  ASSERT_EQ(streamed.status, 0) << streamed.err;
  EXPECT_EQ(plain.json().at("loss"), streamed.json().at("loss"));
  EXPECT_TRUE(fs::is_empty(scratch_ / "drive"));
  const Outcome limited = eval({"--json", "--samples", "5", "--micro-batch-size", "2"});
  ASSERT_EQ(limited.status, 0) << limited.err;
  EXPECT_EQ(limited.json().at("samples"), 5);
  EXPECT_EQ(limited.json().at("of_samples"), 19);
  EXPECT_EQ(limited.json().at("tokens"), 80);
}

TEST_F(EvalOfAModel, RefusesWhatItCannotEvaluate) {
  EXPECT_EQ(eval({"--compute", "fp8"}).status, 2);
  EXPECT_EQ(strata({"eval", reference_model("llama_gqa")}).status, 2);
  const Outcome missing = strata({"eval", reference_model("llama_gqa"), scratch_ / "none.txt"});
  EXPECT_EQ(missing.status, 2);
  EXPECT_THAT(missing.err, HasSubstr("none.txt"));
  evaluation_files(scratch_.path());
  const Outcome tokens = strata({"eval", scratch_ / "e1.txt", scratch_ / "e1.txt"});
  EXPECT_EQ(tokens.status, 2);
  EXPECT_THAT(tokens.err, HasSubstr("cannot evaluate a token file"));
}

}  // namespace
}  // namespace strata::cli::testing
