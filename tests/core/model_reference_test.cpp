// Configurations read as transformers 5 reads them: its own RoPE frequencies, attention factors and windows for every key that it
// follows, and a refusal wherever it refuses (tests/reference/make_model_configurations.py).
#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.hpp"
#include "core/json.hpp"
#include "core/model.hpp"
#include "tests/support/files.hpp"
#include "tests/support/scratch_directory.hpp"

namespace strata {
namespace {

Json reference() {
  return parse_json_file(std::filesystem::path(STRATA_SOURCE_DIR) / "tests/reference/model_configurations.json", ErrorCode::io);
}

ModelDescription read(const Json& config) {
  const ScratchDirectory directory;
  write_file(directory / "config.json", config.dump());
  return read_model_description(directory.path());
}

TEST(ModelReference, EveryConfigurationIsReadAsTransformersReadsItOrRefused) {
  const Json document = reference();
  size_t followed = 0, refused = 0;
  for (const Json& one : document.at("cases")) {
    SCOPED_TRACE(one.at("name").get<std::string>());
    if (one.contains("refused") || one.contains("stricter")) {
      ++refused;
      EXPECT_THROW(read(one.at("config")), Error);
      continue;
    }
    ++followed;
    ModelDescription model;
    ASSERT_NO_THROW(model = read(one.at("config")));
    EXPECT_EQ(model.sliding_window, one.at("windows").get<std::vector<int64_t>>());
    const RopeFrequencies frequencies = rope_frequencies(model, one.at("length").get<int64_t>());
    EXPECT_NEAR(frequencies.attention_factor, one.at("attention_factor").get<double>(), 1e-12);
    const auto expected = one.at("inverse_frequency").get<std::vector<double>>();
    ASSERT_EQ(frequencies.inverse_frequency.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i)  // theirs are fp32
      EXPECT_NEAR(frequencies.inverse_frequency[i] / expected[i], 1.0, 2e-6) << i;
  }
  EXPECT_GT(followed, 100u);
  EXPECT_GT(refused, 20u);
}

/// Without an effect of what is said to be followed, the test above would pass for a reader that ignores keys.
TEST(ModelReference, TheKeysOfTheCasesHaveEffects) {
  const Json document = reference();
  std::vector<std::vector<double>> different;
  for (const Json& one : document.at("cases")) {
    if (one.contains("refused")) continue;
    auto frequencies = one.at("inverse_frequency").get<std::vector<double>>();
    frequencies.push_back(one.at("attention_factor"));
    if (std::find(different.begin(), different.end(), frequencies) == different.end()) different.push_back(frequencies);
  }
  EXPECT_GT(different.size(), 25u);
}

}  // namespace
}  // namespace strata
