// `strata plan`: what is refused before a run, with all that is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/program.hpp"

namespace strata::cli::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Plan : public ::testing::Test {
 protected:
  /// Plans a small model on the host device, with `changes` as --set options.
  Outcome plan(const std::vector<std::string>& changes, const std::vector<std::string>& options = {}) {
    write_file(scratch_ / "tokens.txt", "some text to read");
    const nlohmann::json config = {{"model", {{"path", reference_model("llama_gqa")}}},
                                   {"data", {{"train", {scratch_ / "tokens.txt"}}, {"sequence_length", 8}}},
                                   {"device", {{"kind", "host"}, {"memory", "64MiB"}}},
                                   {"tiers", {{"host", {{"memory", "64MiB"}}}}}};
    write_file(scratch_ / "config.json", config.dump());
    std::vector<std::string> arguments = {"plan", scratch_ / "config.json"};
    for (const std::string& change : changes) arguments.insert(arguments.end(), {"--set", change});
    arguments.insert(arguments.end(), options.begin(), options.end());
    return strata(arguments);
  }
  const ScratchDirectory scratch_;
};

TEST_F(Plan, RefusesABudgetOfAFewBytesWithTheTableOfAnyOther) {
  const Outcome outcome = plan({"device.memory=1"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("does not fit its memory budgets"), HasSubstr("tables"), HasSubstr("workspace"),
                                 HasSubstr("raise device.memory")));
}

TEST_F(Plan, ListsEveryFileThatIsMissingWithItsKey) {
  const Outcome outcome = plan({"model.path=no-model", "data.train=[\"a.bin\",\"b.bin\"]", "data.eval=[\"c.bin\"]"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("/model/path: \"no-model\""), HasSubstr("/data/train/0: \"a.bin\""),
                                 HasSubstr("/data/train/1: \"b.bin\""), HasSubstr("/data/eval/0: \"c.bin\"")));
  EXPECT_THAT(outcome.err, HasSubstr("try: check the paths"));
}

TEST_F(Plan, RelatesStepsToSamplesTokensAndEpochs) {
  // 18 tokens are two samples of 8 and the token after them.
  const std::vector<std::string> changes = {"steps=100", "batch.gradient_accumulation_steps=4", "batch.micro_batch_size=2"};
  EXPECT_THAT(plan(changes).out, HasSubstr("training    100 steps x 8 samples x 8 tokens = 800 samples, 0.0064 M tokens, "
                                           "400 epochs of 2 samples\n"));
  const nlohmann::json training = plan(changes, {"--json"}).json().at("training");
  EXPECT_EQ(training, nlohmann::json({{"steps", 100}, {"samples_per_step", 8}, {"tokens_per_sample", 8}, {"samples", 800},
                                      {"tokens", 6400}, {"epoch_samples", 2}, {"epochs", 400.0}}));
}

TEST_F(Plan, TakesAsManyMicroBatchesAsTheConfigurationAllows) {
  const Outcome outcome = plan({"batch.gradient_accumulation_steps=4096", "device.memory=4GiB", "tiers.host.memory=4GiB"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("4096 x 8 tokens"));
}

TEST_F(Plan, BoundsTheMicroBatchesOfADeepModel) {
  nlohmann::json model = nlohmann::json::parse(read_file(reference_model("llama_gqa") / "config.json"));
  model["num_hidden_layers"] = 1022;
  write_file(scratch_ / "model.json", model.dump());
  const std::string path = "model.path=" + (scratch_ / "model.json").string();
  const Outcome outcome = plan({path, "batch.gradient_accumulation_steps=513"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("513 micro-batches"), HasSubstr("at most 512"),
                                 HasSubstr("/batch/gradient_accumulation_steps")));
}

}  // namespace
}  // namespace strata::cli::testing
