// `strata init`: a model directory with random weights, the same bits for the same seed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>

#include "core/hf_weights.hpp"
#include "core/init_weights.hpp"
#include "tests/cli/program.hpp"

namespace strata::cli::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr const char* kConfig = R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 300, "n_embd": 64,
  "n_layer": 2, "n_head": 4, "n_positions": 64DTYPE})";

std::string config_with(const std::string& more) { return std::string(kConfig).replace(std::string(kConfig).find("DTYPE"), 5, more); }

class Init : public ::testing::Test {
 protected:
  /// Writes a configuration and runs init on it.
  Outcome init(const std::string& config, std::vector<std::string> options = {}, const std::string& out = "out",
               const std::function<void()>& prepare = {}) {
    write_file(scratch_ / "model.json", config);
    options.insert(options.begin(), {"init", scratch_ / "model.json", scratch_ / out});
    return strata(options, prepare);
  }
  std::string weights(const std::string& out = "out") const { return read_file(scratch_ / out / "model.safetensors"); }
  std::string dtype(const std::string& out = "out") const {
    return SafetensorsFile(scratch_ / out / "model.safetensors").find("transformer.h.0.attn.c_attn.weight")->dtype;
  }
  const ScratchDirectory scratch_;
};

TEST_F(Init, WritesTheWeightsThatTheSeedGives) {
  const Outcome outcome = init(config_with(""), {"--seed", "7", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.json().at("architecture"), "GPT2LMHeadModel");
  const ModelDescription model = read_model_description(scratch_ / "out");
  const ModelLayout layout = make_layout(model);
  EXPECT_EQ(outcome.json().at("parameters"), layout.elements());
  const HfWeights weights(scratch_ / "out", model, layout);
  EXPECT_EQ(weights.source_dtype(), DType::f32);
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    const Range whole{0, layout.units[unit].padded_elements};
    std::vector<float> expected(whole.count), actual(whole.count);
    init_weights(model, layout.units[unit], whole, 7, expected.data());
    weights.read_as_float(unit, whole, actual.data());
    EXPECT_EQ(expected, actual) << layout.units[unit].name;
  }
}

TEST_F(Init, GivesTheSameBytesForTheSameSeedOnAnyNumberOfProcessors) {
  ASSERT_EQ(init(config_with("")).status, 0);
  ASSERT_EQ(init(config_with(""), {}, "again", [] {
              cpu_set_t present, one;
              sched_getaffinity(0, sizeof present, &present);
              CPU_ZERO(&one);
              for (int i = 0; i < CPU_SETSIZE; ++i)
                if (CPU_ISSET(i, &present)) {
                  CPU_SET(i, &one);
                  break;
                }
              sched_setaffinity(0, sizeof one, &one);
            }).status, 0);
  ASSERT_EQ(init(config_with(""), {"--seed", "43"}, "other").status, 0);
  EXPECT_EQ(weights(), weights("again"));
  EXPECT_NE(weights(), weights("other"));
}

TEST_F(Init, WritesTheDtypeOfTheConfiguration) {
  ASSERT_EQ(init(config_with(R"(, "torch_dtype": "bfloat16")")).status, 0);
  EXPECT_EQ(dtype(), "BF16");
  ASSERT_EQ(init(config_with(R"(, "dtype": "float16", "torch_dtype": null)"), {}, "newer").status, 0);
  EXPECT_EQ(dtype("newer"), "F16");
}

TEST_F(Init, WritesTheDtypeThatWasAskedFor) {
  ASSERT_EQ(init(config_with(R"(, "torch_dtype": "bfloat16")"), {"--dtype", "fp16"}).status, 0);
  EXPECT_EQ(dtype(), "F16");
  EXPECT_EQ(nlohmann::json::parse(read_file(scratch_ / "out/config.json")).at("torch_dtype"), "float16");
}

TEST_F(Init, RefusesADtypeThatCannotBeWritten) {
  const Outcome outcome = init(config_with(R"(, "torch_dtype": "float64")"));
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("float64"));
  EXPECT_THAT(outcome.err, HasSubstr("--dtype"));
  EXPECT_FALSE(fs::exists(scratch_ / "out"));
  EXPECT_EQ(init(config_with(R"(, "torch_dtype": "float64")"), {"--dtype", "fp32"}).status, 0);
  EXPECT_EQ(init(config_with(""), {"--dtype", "int8"}, "bad").status, 2);
}

TEST_F(Init, TakesADirectoryAndCopiesItsTokenizer) {
  fs::create_directory(scratch_ / "source");
  write_file(scratch_ / "source/config.json", config_with(""));
  write_file(scratch_ / "source/tokenizer.json", "{}");
  ASSERT_EQ(strata({"init", scratch_ / "source", scratch_ / "out"}).status, 0);
  EXPECT_EQ(read_file(scratch_ / "out/tokenizer.json"), "{}");
}

TEST_F(Init, RefusesADirectoryThatIsNotEmpty) {
  fs::create_directory(scratch_ / "out");
  write_file(scratch_ / "out/mine.txt", "mine");
  const Outcome outcome = init(config_with(""));
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("not empty"));
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch_ / "out"), fs::directory_iterator()), 1);
  EXPECT_EQ(read_file(scratch_ / "out/mine.txt"), "mine");
}

TEST_F(Init, RefusesAFileAsDirectoryAndTakesAnEmptyOne) {
  write_file(scratch_ / "file", "x");
  EXPECT_EQ(init(config_with(""), {}, "file").status, 2);
  fs::create_directory(scratch_ / "empty");
  EXPECT_EQ(init(config_with(""), {}, "empty").status, 0);
}

TEST_F(Init, RefusesConfigurationsThatAreNoModel) {
  const Outcome missing = strata({"init", scratch_ / "absent.json", scratch_ / "out"});
  EXPECT_EQ(missing.status, 1);
  EXPECT_THAT(missing.err, HasSubstr("absent.json"));
  EXPECT_EQ(init("{").status, 2);
  EXPECT_EQ(init("[]").status, 2);
  EXPECT_EQ(init(R"({"architectures": ["BertModel"]})").status, 2);
  EXPECT_EQ(init(config_with(R"(, "n_layer": -1)")).status, 2);
  EXPECT_EQ(init(config_with(""), {"--seed", "-1"}).status, 2);
  EXPECT_EQ(init(config_with(""), {"--seed", "many"}).status, 2);
  EXPECT_FALSE(fs::exists(scratch_ / "out"));
}

TEST_F(Init, TellsTheRangeOfSeeds) {
  for (const char* seed : {"-1", "18446744073709551616", "1.5", ""}) {
    const Outcome outcome = init(config_with(""), {"--seed", seed});
    EXPECT_EQ(outcome.status, 2) << seed;
    EXPECT_THAT(outcome.err, HasSubstr("must be an integer from 0 to 18446744073709551615")) << seed;
  }
  const Outcome largest = init(config_with(""), {"--seed", "18446744073709551615", "--json"});
  ASSERT_EQ(largest.status, 0) << largest.err;
  EXPECT_EQ(largest.json().at("seed"), UINT64_MAX);
}

TEST_F(Init, LeavesNothingBehindWhenTheDiskIsFull) {
  // A limit on file sizes fails the same calls that a full disk does.
  const Outcome outcome = init(config_with(""), {}, "out", [] {
    signal(SIGXFSZ, SIG_IGN);
    const struct rlimit limit {100'000, 100'000};
    setrlimit(RLIMIT_FSIZE, &limit);
  });
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("model.safetensors"));
  EXPECT_TRUE(!fs::exists(scratch_ / "out") || fs::is_empty(scratch_ / "out"));
}

}  // namespace
}  // namespace strata::cli::testing
