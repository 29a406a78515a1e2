// `strata inspect`: what it tells of each thing that Strata reads or writes, and what it says of anything else.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <sstream>

#include "core/safetensors.hpp"
#include "tests/cli/trained_run.hpp"
#include "tiers/file.hpp"
#include "tiers/lock.hpp"

namespace strata::cli::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

Outcome inspect(const fs::path& path, std::vector<std::string> options = {}) {
  options.insert(options.begin(), {"inspect", path.string()});
  return strata(options);
}

/// The facts, which must be readable both ways.
Json facts_of(const fs::path& path, std::vector<std::string> options = {}) {
  const Outcome text = inspect(path, options);
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("kind"));
  options.push_back("--json");
  const Outcome outcome = inspect(path, options);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const Json facts = outcome.json();
  EXPECT_EQ(facts.at("schema_version"), 1);
  return facts;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

class Inspect : public ::testing::Test {
 protected:
  const ScratchDirectory scratch_;
};

TEST_F(Inspect, TellsOfAModelDirectory) {
  const Json facts = facts_of(reference_model("gpt2"));
  EXPECT_EQ(facts.at("kind"), "model directory");
  EXPECT_EQ(facts.at("architecture"), "GPT2LMHeadModel");
  EXPECT_EQ(facts.at("parameters"), 29728);
  EXPECT_EQ(facts.at("tied_head"), true);
  EXPECT_EQ(facts.at("units").size(), 3u);  // the two blocks are alike and share a row
  EXPECT_EQ(facts.at("units")[1].at("count"), 2);
  EXPECT_EQ(facts.at("dtypes")[0].at("dtype"), "F32");
  EXPECT_EQ(facts.at("other_tensors"), 2);
  EXPECT_EQ(facts.at("training_state_in_bf16_bytes"), 29728 * 14);
  EXPECT_FALSE(facts.contains("problem"));
}

TEST_F(Inspect, TellsWhatIsWrongWithAModelDirectory) {
  copy_of_model("llama_gqa", scratch_ / "model");
  fs::copy_file(reference_model("gpt2") / "model.safetensors", scratch_ / "model/model.safetensors",
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(facts_of(scratch_ / "model").at("problem").get<std::string>(), HasSubstr("model.embed_tokens.weight"));
  fs::remove(scratch_ / "model/model.safetensors");
  EXPECT_EQ(facts_of(scratch_ / "model").at("problem"), "there are no weights");
  fs::rename(scratch_ / "model/config.json", scratch_ / "config.json");
  fs::copy_file(reference_model("gpt2") / "model.safetensors", scratch_ / "model/model.safetensors");
  EXPECT_THAT(facts_of(scratch_ / "model").at("problem").get<std::string>(), HasSubstr("no config.json"));
}

TEST_F(Inspect, TellsOfAShardedModel) {
  copy_of_model("llama_gqa", scratch_ / "model");
  fs::rename(scratch_ / "model/model.safetensors", scratch_ / "model/part.safetensors");
  Json index = {{"weight_map", Json::object()}};
  const SafetensorsFile part(scratch_ / "model/part.safetensors");
  for (const auto& tensor : part.tensors())
    index["weight_map"][tensor.name] = "part.safetensors";
  write_file(scratch_ / "model/model.safetensors.index.json", index.dump());
  EXPECT_FALSE(facts_of(scratch_ / "model").contains("problem"));
  const Json facts = facts_of(scratch_ / "model/model.safetensors.index.json");
  EXPECT_EQ(facts.at("kind"), "safetensors index");
  EXPECT_EQ(facts.at("tensors"), 21);
}

TEST_F(Inspect, TellsOfAModelConfigurationAlone) {
  const Json facts = facts_of(reference_model("qwen3") / "config.json");
  EXPECT_EQ(facts.at("kind"), "model configuration");
  EXPECT_EQ(facts.at("architecture"), "Qwen3ForCausalLM");
}

TEST_F(Inspect, TellsOfASafetensorsFile) {
  const Json facts = facts_of(reference_model("llama_gqa") / "model.safetensors");
  EXPECT_EQ(facts.at("kind"), "safetensors file");
  EXPECT_EQ(facts.at("tensors"), 21);
  EXPECT_EQ(facts.at("contents").size(), 21u);
  EXPECT_EQ(facts.at("contents")[0].at("shape").size(), 2u);
}

TEST_F(Inspect, RecognizesSafetensorsByTheirContent) {
  fs::copy_file(reference_model("llama_gqa") / "model.safetensors", scratch_ / "weights.bin");
  EXPECT_EQ(facts_of(scratch_ / "weights.bin").at("kind"), "safetensors file");
}

TEST_F(Inspect, TellsOfTokens) {
  std::vector<int32_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = 3;
  write_file(scratch_ / "a.bin", bytes_of(header) + bytes_of<uint16_t>({5, 50256, 7}));
  Json facts = facts_of(scratch_ / "a.bin");
  EXPECT_EQ(facts.at("kind"), "token file");
  EXPECT_EQ(facts.at("format"), "llmc");
  EXPECT_EQ(facts.at("tokens"), 3);
  EXPECT_EQ(facts.at("largest_token"), 50256);
  EXPECT_EQ(facts.at("smallest_token"), 5);
  EXPECT_EQ(facts.at("masked_tokens"), nullptr);

  std::vector<int32_t> other(256);
  std::memcpy(other.data(), "BIN.TOK\n", 8);
  other[2] = 2;
  other[3] = 4;
  other[4] = 9;
  other[5] = 1000;
  other[6] = 1;
  write_file(scratch_ / "b.bin", bytes_of(other) + bytes_of<int32_t>({1, 2, 3, 4, 5, 6, 7, 8, 999}) + "\x0f\x01");
  facts = facts_of(scratch_ / "b.bin");
  EXPECT_EQ(facts.at("format"), "bintok");
  EXPECT_EQ(facts.at("stated_vocab_size"), 1000);
  EXPECT_EQ(facts.at("masked_tokens"), 4);

  write_file(scratch_ / "c.txt", "abc");
  facts = facts_of(scratch_ / "c.txt");
  EXPECT_EQ(facts.at("format"), "text");
  EXPECT_EQ(facts.at("largest_token"), 'c');
}

TEST_F(Inspect, TakesTheFormatOfTokensWithoutAHeader) {
  write_file(scratch_ / "a.bin", bytes_of<uint16_t>({1, 2, 3, 4}));
  const Outcome outcome = inspect(scratch_ / "a.bin");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("--format"));
  EXPECT_EQ(facts_of(scratch_ / "a.bin", {"--format", "raw16"}).at("tokens"), 4);
  EXPECT_EQ(facts_of(scratch_ / "a.bin", {"--format", "raw32"}).at("tokens"), 2);
  EXPECT_EQ(inspect(scratch_ / "a.bin", {"--format", "llmc"}).status, 1);
  EXPECT_EQ(inspect(scratch_ / "a.bin", {"--format", "raw64"}).status, 2);
}

TEST_F(Inspect, TellsWhatIsWrongWithATokenFileOfAKnownFormat) {
  std::vector<int32_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = 1000;
  write_file(scratch_ / "a.bin", bytes_of(header) + "abcd");
  const Outcome outcome = inspect(scratch_ / "a.bin");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("truncated"), Not(HasSubstr("--format"))));
}

TEST_F(Inspect, CountsTokensWithoutASignWhereTheirFormatHasNone) {
  write_file(scratch_ / "a.bin", bytes_of<uint32_t>({7, UINT32_MAX}));
  const Json facts = facts_of(scratch_ / "a.bin", {"--format", "raw32"});
  EXPECT_EQ(facts.at("smallest_token"), 7);
  EXPECT_EQ(facts.at("largest_token"), UINT32_MAX);
}

TEST_F(Inspect, SaysWhatItExpectedOfAnythingElse) {
  fs::create_directory(scratch_ / "empty");
  fs::create_directory(scratch_ / "other");
  write_file(scratch_ / "other/notes.md", "x");
  write_file(scratch_ / "list.json", "[1]");
  write_file(scratch_ / "broken.json", "{");
  write_file(scratch_ / "nothing", "");
  for (const fs::path& path : {scratch_ / "empty", scratch_ / "other", scratch_ / "list.json", scratch_ / "broken.json",
                               scratch_ / "nothing", scratch_ / "absent", fs::path("/dev/null")}) {
    const Outcome outcome = inspect(path);
    EXPECT_EQ(outcome.status, 1) << path;
    EXPECT_EQ(outcome.out, "") << path;
    EXPECT_THAT(outcome.err, HasSubstr(path.filename().string()));
  }
  EXPECT_THAT(inspect(scratch_ / "empty").err, AllOf(HasSubstr("model directory"), HasSubstr("checkpoint"), HasSubstr("NVMe")));
}

TEST_F(Inspect, NeverPrintsControlCharactersOfAFile) {
  const std::string name = "evil\x1b]0;title\x07";
  SafetensorsWriter writer(scratch_ / "a.safetensors", {{name, "F32", {1}}}, {});
  const float value = 1;
  writer.write(name, 0, &value, sizeof value);
  writer.finish();
  const Outcome outcome = inspect(scratch_ / "a.safetensors");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos);
  EXPECT_THAT(outcome.out, HasSubstr("evil\\x1b]0;title\\x07"));
}

TEST_F(Inspect, NeverPrintsControlCharactersInAnError) {
  copy_of_model("llama_gqa", scratch_ / "model");
  fs::remove(scratch_ / "model/model.safetensors");
  write_file(scratch_ / "model/model.safetensors.index.json",
             R"({"weight_map": {"a": "evil\u001b]0;title\u0007\u009b31m\nstrata: ok"}})");
  const Outcome outcome = strata({"verify", scratch_ / "model/model.safetensors.index.json"});
  EXPECT_EQ(outcome.status, 1);
  const Outcome exported = strata({"export", scratch_ / "evil\x1b]0;title", scratch_ / "out"});
  EXPECT_EQ(exported.status, 1);
  EXPECT_THAT(exported.err, HasSubstr("evil\\x1b]0;title"));
  for (const std::string& text : {outcome.out, outcome.err, exported.err})
    EXPECT_EQ(text.find_first_of("\x1b\x07\x9b"), std::string::npos) << text;
  EXPECT_EQ(outcome.out.find("\nstrata: ok"), std::string::npos);
}

TEST_F(Inspect, TellsOfARunAndItsCheckpoints) {
  const TrainedRun trained(Optimizer::host);
  const Json run = facts_of(trained.run());
  EXPECT_EQ(run.at("kind"), "run directory");
  EXPECT_EQ(run.at("metrics").at("steps"), 4);
  EXPECT_EQ(run.at("metrics").at("last_step"), 4);
  std::istringstream lines(read_file(trained.run() / "metrics.jsonl"));
  std::string first, last;
  std::getline(lines, first);
  for (std::string line; std::getline(lines, line);) last = line;
  EXPECT_EQ(run.at("metrics").at("first_loss"), Json::parse(first).at("loss"));
  EXPECT_EQ(run.at("metrics").at("last_loss"), Json::parse(last).at("loss"));
  ASSERT_EQ(run.at("checkpoints").size(), 2u);
  EXPECT_EQ(run.at("checkpoints")[0].at("step"), 4);
  EXPECT_FALSE(run.contains("held_by"));
  EXPECT_FALSE(run.contains("store"));

  EXPECT_EQ(facts_of(trained.run().string() + "/").at("kind"), "run directory");
  EXPECT_EQ(facts_of(trained.run() / "checkpoints").at("checkpoints").size(), 2u);
  EXPECT_EQ(facts_of(trained.run() / "metrics.jsonl").at("steps"), 4);
  EXPECT_EQ(facts_of(trained.run() / "config.json").at("kind"), "run configuration");

  const Json checkpoint = facts_of(trained.checkpoint(2));
  EXPECT_EQ(checkpoint.at("kind"), "checkpoint");
  EXPECT_EQ(checkpoint.at("checkpoint_kind"), "files");
  EXPECT_EQ(checkpoint.at("trainer").at("step"), 2);
  EXPECT_EQ(checkpoint.at("parameters"), 18528);
  EXPECT_EQ(facts_of(trained.checkpoint(2) / "checkpoint.json"), checkpoint);
}

TEST_F(Inspect, TellsOfAStoreAndItsCheckpoint) {
  const TrainedRun trained(Optimizer::two_nvme);
  const Json store = facts_of(trained.store());
  EXPECT_EQ(store.at("kind"), "store directory");
  EXPECT_EQ(store.at("directories"), 2);
  EXPECT_EQ(store.at("trainer").at("step"), 4);
  EXPECT_EQ(store.at("state").size(), 3u);
  EXPECT_EQ(facts_of(trained.store() / "strata.commit"), store);
  EXPECT_THAT(facts_of(trained.scratch() / "nvme2").at("problem").get<std::string>(), HasSubstr("first directory"));

  const Json checkpoint = facts_of(trained.checkpoint());
  EXPECT_EQ(checkpoint.at("checkpoint_kind"), "store");
  EXPECT_EQ(checkpoint.at("store").at("generation"), store.at("generation"));
  EXPECT_THAT(checkpoint.at("store").at("state").get<std::string>(), HasSubstr("complete"));
  EXPECT_EQ(facts_of(trained.run()).at("store").at("step"), 4);
}

TEST_F(Inspect, NamesWhoHoldsADirectory) {
  const TrainedRun trained(Optimizer::nvme);
  const tiers::FileDescriptor directory = tiers::open_directory(trained.store());
  const tiers::DirectoryLock lock(directory.get(), trained.store(), tiers::DirectoryLock::Kind::run);
  EXPECT_THAT(facts_of(trained.store()).at("held_by").get<std::string>(), HasSubstr(std::to_string(getpid())));
}

TEST_F(Inspect, NamesWhatAKilledProcessLeft) {
  const TrainedRun trained(Optimizer::nvme);
  write_file(trained.store() / "strata.commit.new", "x");
  write_file(trained.store() / ".strata.scratch.0123456789abcdef", "x");
  write_file(trained.run() / "metrics.jsonl.tmp-0a1b2c3d", "x");
  fs::create_directory(trained.run() / "checkpoints/step-00000009.partial");
  EXPECT_EQ(facts_of(trained.store()).at("left_by_a_killed_process").size(), 2u);
  const Json run = facts_of(trained.run());
  EXPECT_EQ(run.at("left_by_a_killed_process").size(), 1u);
  EXPECT_EQ(run.at("checkpoints_left_by_a_killed_process").size(), 1u);
  EXPECT_FALSE(run.contains("not_whole"));
  for (const fs::path& path : {trained.store() / "strata.commit.new", trained.run() / "metrics.jsonl.tmp-0a1b2c3d",
                               trained.run() / "checkpoints/step-00000009.partial"})
    EXPECT_EQ(facts_of(path).at("kind"), "leftover of a killed process");
}

TEST_F(Inspect, TellsOfEveryFileOfARun) {
  const TrainedRun trained(Optimizer::nvme);
  for (const auto& entry : fs::recursive_directory_iterator(trained.run()))
    EXPECT_EQ(inspect(entry.path()).status, 0) << entry.path();
  for (const auto& entry : fs::recursive_directory_iterator(trained.store()))
    EXPECT_EQ(inspect(entry.path()).status, 0) << entry.path();
  EXPECT_EQ(facts_of(trained.run() / "plan.json").at("placement").at("optimizer"), "nvme");
  EXPECT_GT(facts_of(trained.run() / "trace.json").at("operations"), 10);
}

TEST_F(Inspect, TellsOfAMachineProfile) {
  write_file(scratch_ / "machine.json", R"({"nvme_read_bytes": 5e9})");
  EXPECT_EQ(facts_of(scratch_ / "machine.json").at("nvme_read_GB_per_second"), 5.0);
}

TEST_F(Inspect, TellsOfAStoreThatWasNotFinished) {
  const TrainedRun trained(Optimizer::nvme);
  fs::remove(trained.store() / "strata.commit");
  EXPECT_THAT(facts_of(trained.store()).at("problem").get<std::string>(), HasSubstr("put strata.commit back"));
  const auto bytes = fs::file_size(trained.store() / "strata.state");
  fs::resize_file(trained.store() / "strata.state", 4096);  // the header alone: no state was ever written
  fs::resize_file(trained.store() / "strata.state", bytes);
  EXPECT_THAT(facts_of(trained.store()).at("problem").get<std::string>(), HasSubstr("interrupted"));
  fs::remove(trained.store() / "strata.state");
  EXPECT_THAT(facts_of(trained.store()).at("problem").get<std::string>(), HasSubstr("lock file"));
}

TEST_F(Inspect, ReadsMetricsThatWereCutOff) {
  write_file(scratch_ / "metrics.jsonl", "{\"step\": 1, \"loss\": 2.5}\n{\"step\": 2, \"loss\": null, \"skipped\": true}\n{\"step\": 3, \"lo");
  const Json facts = facts_of(scratch_ / "metrics.jsonl");
  EXPECT_EQ(facts.at("steps"), 2);
  EXPECT_EQ(facts.at("first_loss"), 2.5);
  EXPECT_EQ(facts.at("last_loss"), nullptr);
  EXPECT_EQ(facts.at("skipped_steps"), 1);
  EXPECT_EQ(facts.at("malformed_lines"), 1);
}

}  // namespace
}  // namespace strata::cli::testing
